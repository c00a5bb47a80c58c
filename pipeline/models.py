"""Which files make up this model, and is anything missing?

A model is one folder in the layout of diffusers, except for its transformer, which is one GGUF file:

    transformer/<name>.gguf   text_encoder/   tokenizer/   vae/   [audio_vae/] [scheduler/, audio_scheduler/]
    shifts of the noise schedules; absent: 12 and 3, as released [model_index.json]
    "_firstlook": {"text_hidden_layer": 50, "audio": true}, these values when absent

`find` never loads weights: it reads configurations and the tables of contents of weight files, so it is
quick enough for every form that is opened. What a file is follows from its tensors, never from its name or
architecture string. What is absent is listed in `ModelFiles.missing`; what is present but damaged or foreign
raises ModelError at once.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

import gguf

from pipeline.canvas import ModelGeometry
from pipeline.errors import ModelError
from pipeline.layouts import PREFIXES
from pipeline.safetensors_file import read_header

VIDEO_SHIFT, AUDIO_SHIFT, TEXT_HIDDEN_LAYER = 12.0, 3.0, 50
H3_PATCH = (1, 2, 2)
WHOLE_HASH = 1 << 30
"""Files up to this size are hashed whole; of larger ones, `SAMPLES` pieces of `SAMPLE` bytes are."""
SAMPLES, SAMPLE = 64, 1 << 20

_TRANSFORMER_TENSORS = ("video_patch_proj.weight", "condition_proj.weight", "blocks.0.attn.qkv_proj.weight")
_VAE_TENSORS = ("encoder.conv_in.weight", "decoder.proj_in.weight", "post_quant_conv.weight")
_TITLES = {
    "transformer": "denoiser",
    "text_encoder": "text encoder",
    "tokenizer": "tokenizer",
    "vae": "video VAE",
}
_NOTES = {
    "transformer": "The denoiser as one GGUF file: 'python -m pipeline convert' makes it from safetensors.",
    "text_encoder": "The folder of the Qwen3-VL text encoder: config.json and its safetensors files.",
    "tokenizer": "The folder of the tokenizer: tokenizer.json and tokenizer_config.json.",
    "vae": "The folder of the video VAE in diffusers' layout: config.json and its safetensors file.",
}
_DEFAULT_PATHS = {role: role for role in _NOTES} | {"transformer": "transformer/model.gguf"}
_SYNONYMS = {"denoiser": "transformer", "video_vae": "vae"}


class Expected(Protocol):
    """A file or folder a preset names: its role, its path in the model folder, where it comes from."""

    role: str
    path: str
    note: str


@dataclass(frozen=True)
class Missing:
    """Something the model lacks: what it is, where it has to be, and where it comes from."""

    role: str
    path: Path
    note: str


@dataclass(frozen=True)
class ModelFiles:
    """The parts of one model; None where a part is missing. `sizes` are bytes on disk by part.

    `shift` and `audio_shift` bend the noise schedules; `text_hidden_layer` counts decoder layers of the text
    encoder from 1: the output of that one conditions.
    """

    root: Path
    transformer: Path | None
    text_encoder: Path | None
    tokenizer: Path | None
    vae: Path | None
    audio_vae: Path | None
    shift: float
    audio_shift: float
    text_hidden_layer: int
    generates_audio: bool
    missing: tuple[Missing, ...]
    sizes: dict[str, int] = field(hash=False)

    def require(self, part: str) -> Path:
        """The path of a part; raises ModelError that says where the missing part has to be and how to get
        it."""
        path = getattr(self, part)
        if path is not None:
            return path
        for missing in self.missing:
            if _part(missing.role) == part:
                raise ModelError(
                    f"The {missing.role} is missing: {missing.path} is needed. {missing.note}".strip()
                )
        raise ModelError(f"The model in {self.root} has no {part}.")

    @cached_property
    def geometry(self) -> ModelGeometry:
        """What decides which shapes the model can make. Raises ModelError when parts are missing or do not
        match."""
        vae = _read_json(self.require("vae") / "config.json")
        contents = _read_gguf(self.require("transformer"))
        geometry = _geometry(vae, contents, self.require("vae"), self.generates_audio)
        _check_text_width(self.require("text_encoder"), contents)
        return geometry

    def hashes(self) -> dict[str, str]:
        """What identifies each file of the model, by its path in the model folder.

        "sha256:..." of the whole file; for a file above 1 GiB "sampled-sha256:..." of its size and of pieces
        spread evenly over it, which tells files apart in seconds but does not prove that no byte has
        changed. Remembered until a file's size or time changes.
        """
        return {
            _relative(path, self.root): _digest(path, path.stat().st_size, path.stat().st_mtime_ns)
            for part in (self.transformer, self.text_encoder, self.tokenizer, self.vae, self.audio_vae)
            if part is not None
            for path in _files(part)
        }


def find(folder: Path, expected: Iterable[Expected] = ()) -> ModelFiles:
    """Look for the parts of a model below `folder`; `expected` are a preset's own paths and notes.

    Raises ModelError, naming the file, for one that is cut short, damaged or not what it should be.
    """
    named = {_part(entry.role): entry for entry in expected}
    index = _read_json(folder / "model_index.json", optional=True).get("_firstlook", {})
    parts = {
        "transformer": _find_transformer(folder, named.get("transformer")),
        "text_encoder": _find_weights(_place(folder, named, "text_encoder")),
        "tokenizer": _find_tokenizer(_place(folder, named, "tokenizer")),
        "vae": _find_weights(_place(folder, named, "vae"), _VAE_TENSORS),
        "audio_vae": _find_weights(_place(folder, named, "audio_vae")),
    }
    return ModelFiles(
        root=folder,
        **parts,
        shift=_shift(folder / "scheduler", VIDEO_SHIFT),
        audio_shift=_shift(folder / "audio_scheduler", AUDIO_SHIFT),
        text_hidden_layer=int(index.get("text_hidden_layer", TEXT_HIDDEN_LAYER)),
        generates_audio=bool(index.get("audio", True)),
        missing=tuple(_missing(folder, parts, named)),
        sizes={
            part: sum(file.stat().st_size for file in _files(path)) for part, path in parts.items() if path
        },
    )


def _missing(folder: Path, parts: dict[str, Path | None], named: dict[str, Expected]) -> Iterator[Missing]:
    unconverted = any((folder / "transformer").glob("*.safetensors"))
    for part in _NOTES:
        if parts[part] is not None:
            continue
        entry = named.get(part)
        path = folder / (entry.path if entry is not None else _DEFAULT_PATHS[part])
        note = entry.note if entry is not None and entry.note else _NOTES[part]
        if part == "transformer" and unconverted:
            note = f"Make it: python -m pipeline convert --input {folder / part} --out {path}"
        yield Missing(entry.role if entry is not None else _TITLES[part], path, note)
    for part, entry in named.items():
        if part not in _NOTES and not (folder / entry.path).exists():
            yield Missing(entry.role, folder / entry.path, entry.note)


def _find_transformer(folder: Path, entry: Expected | None) -> Path | None:
    """The named GGUF file when it is there; otherwise the only one in transformer/, or in the folder
    itself."""
    if entry is not None and (folder / entry.path).is_file():
        found = [folder / entry.path]
    else:
        found = sorted((folder / "transformer").glob("*.gguf")) or sorted(folder.glob("*.gguf"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ModelError(
            f"{found[0].parent} holds {names}: keep one, or name one under [[files]] in the preset."
        )
    for path in found:
        _read_gguf(path)
        return path
    return None


def _find_weights(folder: Path, tensors: tuple[str, ...] = ()) -> Path | None:
    """A folder with config.json and safetensors whose headers are sound; None when either is absent."""
    files = sorted(folder.glob("*.safetensors"))
    if not files or not (folder / "config.json").is_file():
        return None
    _read_json(folder / "config.json")
    for index in folder.glob("*.safetensors.index.json"):
        absent = set(_read_json(index).get("weight_map", {}).values()) - {file.name for file in files}
        if absent:
            raise ModelError(f"{folder / min(absent)} is missing, though {index.name} lists it: copy it too.")
    names = {
        name for file in files for name in _header_names(file, file.stat().st_size, file.stat().st_mtime_ns)
    }
    for name in tensors:
        if name not in names:
            raise ModelError(
                f"{files[0]} lacks tensor {name}: it is not MiniMax-H3's video VAE as diffusers has it."
            )
    return folder


def _find_tokenizer(folder: Path) -> Path | None:
    known = ("tokenizer.json", "vocab.json")
    return folder if any((folder / name).is_file() for name in known) else None


@dataclass(frozen=True)
class _Contents:
    """What a GGUF file says of itself: shapes (as torch has them) by name without prefix, and metadata."""

    path: Path
    shapes: dict[str, tuple[int, ...]]
    metadata: dict[str, Any]


def _read_gguf(path: Path) -> _Contents:
    status = path.stat()
    return _contents(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=32)
def _contents(path: Path, size: int, modified: int) -> _Contents:
    try:
        reader = gguf.GGUFReader(path)
        shapes = {
            _without_prefix(tensor.name): tuple(int(n) for n in reversed(tensor.shape))
            for tensor in reader.tensors
        }
        metadata = {
            name: entry.contents() for name, entry in reader.fields.items() if name.startswith("minimax_h3.")
        }
    except Exception as error:  # gguf raises whatever its arrays do when a file ends early
        raise ModelError(f"{path} is not a GGUF file or is cut short: copy or convert it again.") from error
    for name in _TRANSFORMER_TENSORS:
        if name not in shapes:
            raise ModelError(f"{path} lacks tensor {name}: it is not a MiniMax-H3 denoiser.")
    return _Contents(path, shapes, metadata)


def _without_prefix(name: str) -> str:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name


@lru_cache(maxsize=256)
def _header_names(path: Path, size: int, modified: int) -> frozenset[str]:
    return frozenset(read_header(path).tensors)


def _geometry(vae: dict[str, Any], contents: _Contents, vae_folder: Path, audio: bool) -> ModelGeometry:
    channels = int(vae.get("latent_channels", ModelGeometry.latent_channels))
    spatial = math.prod(vae.get("spatial_downsample_factors", (ModelGeometry.spatial_ratio,)))
    temporal = math.prod(vae.get("temporal_downsample_factors", (ModelGeometry.temporal_ratio,)))
    patch = tuple(int(size) for size in contents.metadata.get("minimax_h3.patch_size", H3_PATCH))
    width = contents.shapes["video_patch_proj.weight"][1]
    if len(patch) != 3 or channels * math.prod(patch) != width:
        raise ModelError(
            f"{contents.path} takes rows of {width} values, but {vae_folder} makes {channels} channels in "
            f"patches of {patch}: the two do not belong together."
        )
    geometry = ModelGeometry(
        spatial_ratio=spatial,
        temporal_ratio=temporal,
        patch=patch,
        clip_length=int(vae.get("clip_length", ModelGeometry.clip_length)),
        token_drop=int(vae.get("token_drop", ModelGeometry.token_drop)),
        latent_channels=channels,
        audio_channels=contents.shapes.get("audio_patch_proj.weight", (0, 0))[1],
        has_audio=audio and "audio_patch_proj.weight" in contents.shapes,
    )
    if geometry.token_drop and not geometry.overlap_frames:
        raise ModelError(
            f"{vae_folder / 'config.json'} describes chunks that do not overlap: it is not understood."
        )
    return geometry


def _check_text_width(folder: Path, contents: _Contents) -> None:
    config = _read_json(folder / "config.json")
    made = config.get("text_config", config).get("hidden_size")
    taken = contents.shapes["condition_proj.weight"][1]
    if made != taken:
        raise ModelError(
            f"{contents.path} takes text rows of {taken} values, but {folder} makes {made}: "
            "the two do not belong together."
        )


def _place(folder: Path, named: dict[str, Expected], part: str) -> Path:
    if part in named and (folder / named[part].path).is_dir():
        return folder / named[part].path
    return folder / part


def _part(role: str) -> str:
    """The part a preset's role means: "text encoder" is text_encoder, "video VAE" is vae."""
    name = role.strip().lower().replace(" ", "_").replace("-", "_")
    return _SYNONYMS.get(name, name)


def _shift(folder: Path, default: float) -> float:
    path = folder / "scheduler_config.json"
    shift = _read_json(path, optional=True).get("shift", default)
    if not isinstance(shift, (int, float)) or shift <= 0:
        raise ModelError(f"{path} has the shift {shift!r}: it must be a positive number.")
    return float(shift)


def _read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    if optional and not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error}): copy it again.") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object: copy it again.")
    return value


def _files(part: Path) -> list[Path]:
    return [part] if part.is_file() else sorted(path for path in part.iterdir() if path.is_file())


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


@lru_cache(maxsize=256)
def _digest(path: Path, size: int, modified: int) -> str:
    with path.open("rb") as file:
        if size <= WHOLE_HASH:
            digest = hashlib.sha256()
            while piece := file.read(SAMPLE):
                digest.update(piece)
            return f"sha256:{digest.hexdigest()}"
        digest = hashlib.sha256(str(size).encode())
        for index in range(SAMPLES):
            file.seek((size - SAMPLE) * index // (SAMPLES - 1))
            digest.update(file.read(SAMPLE))
    return f"sampled-sha256:{digest.hexdigest()}"
