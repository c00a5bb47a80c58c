"""A MiniMax-H3 transformer as people have it on disk, seen as one list of tensors that can be read by rows.

Accepted: a diffusers `transformer/` folder (sharded or not), the original release tree (`FL2VA/` or its
`transformer/`), and ComfyUI single files. Which layout a file has is told by its tensors; only the order of
the rows of `attn.qkv_proj` is not (see `pipeline.layouts`), and reading it wrongly gives a flat grey picture
without any error. It is decided by, in this order: what the caller says; the file's own metadata; where the
file lies (a folder beside a `model_index.json` with `_minimax_h3` is the original release, interleaved; a
single file is ComfyUI's, stacked). Otherwise it is an error.

Nothing is guessed: unknown, missing and mis-shaped tensors are named, and forms that would be read wrongly
(8-bit scaled, rotated, pruned) are refused by name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipeline.errors import ModelError
from pipeline.layouts import PREFIXES, Dimensions, Layout, Part, measure, parts, shapes
from pipeline.safetensors_file import FLOAT_DTYPES, StoredTensor, read_header

QkvOrder = Literal["interleaved", "stacked"]
_LISTED = 40
_ROPE = "rope.inv_freq"
_LAYOUT_MARKS = {"proj_in.weight": "split", "video_patch_proj.weight": "stacked"}


@dataclass(frozen=True)
class Settings:
    """What the shapes cannot tell, from config.json where there is one and else as in the released H3."""

    patch: tuple[int, int, int] = (1, 2, 2)
    rope_frequencies: int = 16
    rope_theta: float = 10000.0
    norm_epsilon: float = 1e-5
    qk_norm_epsilon: float = 1e-5
    final_norm_epsilon: float = 1e-5


@dataclass(frozen=True)
class SourceTensor:
    """One tensor under its `stacked` name, with the stored rows it is made of."""

    name: str
    shape: tuple[int, ...]
    pieces: tuple[tuple[StoredTensor, int, int], ...]

    @property
    def rows(self) -> int:
        """Rows as a matrix; a vector is one row."""
        return math.prod(self.shape[:-1])

    @property
    def dtype(self) -> str:
        """The narrowest description that loses nothing: the stored type, F32 when pieces differ."""
        dtypes = {stored.dtype for stored, _, _ in self.pieces}
        return dtypes.pop() if len(dtypes) == 1 else "F32"

    @property
    def row_bytes(self) -> int:
        """Stored bytes of one row."""
        return self.pieces[0][0].row_bytes

    def read_rows(self, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop) as float32 [stop - start, columns]."""
        row, blocks = 0, []
        for stored, first, last in self.pieces:
            low, high = max(start, row), min(stop, row + last - first)
            if low < high:
                blocks.append(stored.read_rows(first + low - row, first + high - row))
            row += last - first
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


@dataclass(frozen=True)
class Checkpoint:
    """A complete transformer: every tensor is there, has the right shape and a type that can be read.

    `order` is how `attn.qkv_proj` was stored: interleaved, stacked, or split (diffusers). `dtypes` counts the
    stored types.
    """

    path: Path
    files: tuple[Path, ...]
    order: str
    dimensions: Dimensions
    settings: Settings
    tensors: tuple[SourceTensor, ...]
    dtypes: dict[str, int]

    @property
    def stored_bytes(self) -> int:
        return sum(tensor.rows * tensor.row_bytes for tensor in self.tensors)


@dataclass(frozen=True)
class _Location:
    files: tuple[Path, ...]
    config: dict[str, Any]
    config_path: Path
    single_file: bool
    original_release: bool


def open_checkpoint(path: Path, qkv: QkvOrder | None = None) -> Checkpoint:
    """Find, check and describe the transformer at `path` without reading any weights.

    `qkv` overrides the order of the rows of `attn.qkv_proj`. Raises ModelError.
    """
    location = _locate(path)
    stored, metadata = _collect(location.files)
    _refuse_unreadable(path, stored)
    layout, stored = _detect(path, stored)
    _refuse_dtypes(path, stored)
    order = _decide_order(path, qkv, metadata, location) if layout == "stacked" else "split"
    layout = "interleaved" if order == "interleaved" else layout
    dims = _measure(path, stored, layout)
    settings = _settings(path, location, dims, stored.pop(_ROPE, None))
    return Checkpoint(
        path=path,
        files=location.files,
        order=order,
        dimensions=dims,
        settings=settings,
        tensors=_assemble(path, stored, dims, layout),
        dtypes=_count(tensor.dtype for tensor in stored.values()),
    )


# ---- where the files are ----


def _locate(path: Path) -> _Location:
    if not path.exists():
        raise ModelError(f"{path} does not exist.")
    if path.is_file():
        if path.suffix != ".safetensors":
            raise ModelError(f"{path} is not a .safetensors file: convert reads those, and folders of them.")
        return _location((path,), path.parent, single_file=True)
    folder = path
    if not any(path.glob("*.safetensors")) and (path / "transformer").is_dir():
        folder = path / "transformer"
    return _location(_shards(folder), folder, single_file=False)


def _location(files: tuple[Path, ...], folder: Path, single_file: bool) -> _Location:
    config_path = folder / "config.json"
    config = _read_json(config_path) if config_path.is_file() else {}
    if single_file and not {"hidden_size", "num_attention_heads"} & config.keys():
        config = {}  # a single file may lie beside something else's config.json
    index = folder.parent / "model_index.json"
    original = index.is_file() and "_minimax_h3" in _read_json(index)
    return _Location(files, config, config_path, single_file, original)


def _shards(folder: Path) -> tuple[Path, ...]:
    indexes = sorted(folder.glob("*.safetensors.index.json"))
    if len(indexes) > 1:
        raise ModelError(f"{folder} has several shard lists ({_joined(p.name for p in indexes)}): keep one.")
    if not indexes:
        files = tuple(sorted(folder.glob("*.safetensors")))
        if not files:
            raise ModelError(f"{folder} has no .safetensors file: give the folder with the transformer.")
        return files
    weight_map = _read_json(indexes[0]).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{indexes[0]} has no weight_map: download it again.")
    files = tuple(folder / str(name) for name in sorted(set(weight_map.values())))
    absent = [file.name for file in files if not file.is_file()]
    if absent:
        raise ModelError(f"{folder} lacks {len(absent)} of {len(files)} shards: {_joined(absent)}.")
    return files


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error}).") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object.")
    return value


# ---- what is in them ----


def _collect(files: Iterable[Path]) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    stored: dict[str, StoredTensor] = {}
    metadata: dict[str, str] = {}
    for path in files:
        header = read_header(path)
        twice = stored.keys() & header.tensors.keys()
        if twice:
            raise ModelError(f"{path} repeats tensors of another file beside it: {_joined(sorted(twice))}.")
        stored |= header.tensors
        metadata |= header.metadata
    return stored, metadata


def _refuse_unreadable(path: Path, stored: Mapping[str, StoredTensor]) -> None:
    marks = [name for name in stored if name.endswith((".comfy_quant", ".weight_scale", ".scale_weight"))]
    if marks:
        form = _comfy_format(stored, marks)
        raise ModelError(
            f"{path} holds {form} weights of ComfyUI (tensor {marks[0]}), which would be read "
            "wrongly: convert the bf16 file instead."
        )
    if any(name.endswith("adaln_t_table") for name in stored):
        raise ModelError(
            f"{path} is the pruned form of the model (tensor adaln_t_table), which the engine does not "
            "compute yet: convert the full file instead."
        )
    if any(".lora_" in name for name in stored):
        raise ModelError(f"{path} is a LoRA, not a model: convert the model it belongs to.")


def _comfy_format(stored: Mapping[str, StoredTensor], marks: list[str]) -> str:
    """The name ComfyUI's descriptor gives to the form, such as int8_convrot."""
    for name in marks:
        tensor = stored[name]
        if name.endswith(".comfy_quant") and tensor.dtype == "U8" and math.prod(tensor.shape) < 4096:
            with tensor.path.open("rb") as file:
                file.seek(tensor.offset)
                text = file.read(math.prod(tensor.shape)).decode("utf-8", "replace")
            try:
                return str(json.loads(text)["format"])
            except (ValueError, KeyError, TypeError):
                break
    return "8-bit or 4-bit scaled"


def _refuse_dtypes(path: Path, stored: Mapping[str, StoredTensor]) -> None:
    odd = sorted(name for name, tensor in stored.items() if tensor.dtype not in FLOAT_DTYPES)
    if odd:
        raise ModelError(
            f"{path} stores {stored[odd[0]].dtype} in {_joined(odd)}; only F32, F16 and BF16 are read: "
            "convert a bf16 file instead."
        )


def _detect(path: Path, stored: dict[str, StoredTensor]) -> tuple[Layout, dict[str, StoredTensor]]:
    """The layout by names (`stacked` also for interleaved), and the tensors without ComfyUI's prefix."""
    for prefix in PREFIXES:
        if any(name.startswith(prefix) for name in stored):
            stored = {name.removeprefix(prefix): tensor for name, tensor in stored.items()}
            break
    found = [layout for mark, layout in _LAYOUT_MARKS.items() if mark in stored]
    if not found:
        found = ["split"] if any(n.startswith("transformer_blocks.") for n in stored) else []
        found += ["stacked"] if any(n.startswith("blocks.") for n in stored) else []
    if len(found) != 1:
        raise ModelError(
            f"{path} is not a MiniMax-H3 transformer: neither video_patch_proj nor proj_in is among its "
            f"{len(stored)} tensors."
            if not found
            else f"{path} mixes diffusers' tensor names with the original ones: keep one of the two models."
        )
    if found[0] == "split" and any(name.endswith(".attn.to_qkv.weight") for name in stored):
        return "fused", stored
    return ("split" if found[0] == "split" else "stacked"), stored


def _decide_order(
    path: Path, asked: QkvOrder | None, metadata: Mapping[str, str], location: _Location
) -> QkvOrder:
    if asked is not None:
        return asked
    own = str(metadata.get("firstlook.qkv_order") or metadata.get("qkv") or "")
    for order in ("interleaved", "stacked"):
        if own.startswith(order):
            return order
    if location.original_release:
        return "interleaved"
    if location.single_file:
        return "stacked"
    raise ModelError(
        f"{path} does not tell the order of its attn.qkv_proj rows: pass --qkv interleaved for files of the "
        "original release or --qkv stacked for files made for ComfyUI."
    )


# ---- whether it is complete ----


def _measure(path: Path, stored: Mapping[str, StoredTensor], layout: Layout) -> Dimensions:
    dims, bad = measure({name: tensor.shape for name, tensor in stored.items()}, layout)
    if dims is None:
        found = {name: f"unexpected shape {list(stored[name].shape)}" for name in bad if name in stored}
        raise _incomplete(path, [f"{name}: {found.get(name, 'missing')}" for name in bad])
    return dims


def _assemble(
    path: Path, stored: Mapping[str, StoredTensor], dims: Dimensions, layout: Layout
) -> tuple[SourceTensor, ...]:
    problems: dict[str, str] = {}
    used: set[str] = set()
    tensors = []
    for name, shape in shapes(dims).items():
        pieces = parts(name, shape, dims, layout)
        used |= {part.name for part in pieces}
        problems |= {part.name: text for part in pieces if (text := _problem(stored.get(part.name), part))}
        if not problems:
            spans = tuple((stored[part.name], part.start, part.stop) for part in pieces)
            tensors.append(SourceTensor(name, shape, spans))
    problems |= dict.fromkeys(sorted(stored.keys() - used), "unknown")
    if problems:
        raise _incomplete(path, [f"{name}: {text}" for name, text in problems.items()])
    return tuple(tensors)


def _problem(stored: StoredTensor | None, part: Part) -> str:
    if stored is None:
        return "missing"
    if stored.shape != part.shape:
        return f"shape {list(stored.shape)} instead of {list(part.shape)}"
    return ""


def _incomplete(path: Path, problems: list[str]) -> ModelError:
    hint = ""
    if path.is_file() and "-of-" in path.name:
        hint = " (it looks like one shard of several: give their folder instead)"
    lines = [f"  {problem}" for problem in problems[:_LISTED]]
    if len(problems) > _LISTED:
        lines.append(f"  and {len(problems) - _LISTED} more")
    return ModelError("\n".join([f"{path} is not a complete MiniMax-H3 transformer{hint}:", *lines]))


# ---- what the shapes cannot tell ----

_CONFIG_SIZES = (
    ("hidden", ("hidden_size",)),
    ("heads", ("num_attention_heads",)),
    ("head_dim", ("attention_head_dim",)),
    ("feed_forward", ("ffn_dim", "ffn_hidden_size")),
    ("blocks", ("num_layers",)),
    ("refiner_blocks", ("num_refiner_layers", "token_refiner_num_layers")),
    ("audio_width", ("audio_in_channels", "audio_latents_dim")),
    ("text_width", ("text_dim",)),
    ("time_frequencies", ("freq_dim", "timestep_input_dim")),
    ("time_hidden", ("time_embed_hidden_dim", "time_embed_hidden_size")),
    ("time_width", ("time_embed_dim",)),
)  # both spellings: diffusers' and the original release's


def _settings(path: Path, location: _Location, dims: Dimensions, rope: StoredTensor | None) -> Settings:
    config, default = location.config, Settings()
    for field, keys in _CONFIG_SIZES:
        for key in keys:
            if key in config and config[key] != getattr(dims, field):
                raise ModelError(
                    f"{location.config_path} says {key} is {config[key]} but the tensors of {path} say "
                    f"{getattr(dims, field)}: they do not belong together, or tensors are missing."
                )
    frequencies = config.get("rope_freq_dim", config.get("rope_inv_freq_len"))
    if frequencies is None:
        frequencies = rope.shape[0] if rope and rope.shape else default.rope_frequencies
    settings = Settings(
        patch=_patch(config, default),
        rope_frequencies=int(frequencies),
        rope_theta=float(config.get("rope_theta", default.rope_theta)),
        norm_epsilon=float(config.get("norm_eps", default.norm_epsilon)),
        qk_norm_epsilon=float(config.get("qk_norm_eps", default.qk_norm_epsilon)),
        final_norm_epsilon=float(config.get("final_norm_eps", default.final_norm_epsilon)),
    )
    _check_settings(path, settings, dims, config, rope)
    return settings


def _patch(config: Mapping[str, Any], default: Settings) -> tuple[int, int, int]:
    if "patch_size" in config:
        time, height, width = (int(size) for size in config["patch_size"])
        return time, height, width
    sizes = zip(("patch_size_t", "patch_size_h", "patch_size_w"), default.patch, strict=True)
    time, height, width = (int(config.get(key, size)) for key, size in sizes)
    return time, height, width


def _check_settings(
    path: Path, settings: Settings, dims: Dimensions, config: Mapping[str, Any], rope: StoredTensor | None
) -> None:
    area = math.prod(settings.patch)
    channels = config.get("in_channels", config.get("latents_dim"))
    if area < 1 or dims.video_width % area or (channels is not None and channels * area != dims.video_width):
        raise ModelError(
            f"{path} has video rows of {dims.video_width} values, which is not {channels or 'a number of'} "
            f"channels times patches of {list(settings.patch)}: its config.json is missing or wrong."
        )
    if not 0 < 6 * settings.rope_frequencies <= dims.head_dim:
        raise ModelError(
            f"{path} has heads of {dims.head_dim} channels, too few for {settings.rope_frequencies} rotary "
            "frequencies on three axes: put the model's config.json (rope_freq_dim) beside the weights."
        )
    if rope is not None:
        _check_rope(path, settings, rope)


def _check_rope(path: Path, settings: Settings, rope: StoredTensor) -> None:
    """The engine computes the frequencies; a file that holds others would be rotated wrongly."""
    exponent = np.arange(settings.rope_frequencies, dtype=np.float64) / settings.rope_frequencies
    expected = settings.rope_theta**-exponent
    if rope.shape != expected.shape or not np.allclose(rope.read_rows(0, 1)[0], expected, rtol=1e-5, atol=0):
        raise ModelError(
            f"{path} holds rotary frequencies ({_ROPE}) other than theta {settings.rope_theta:g} gives: put "
            "the model's config.json beside the weights."
        )


def _joined(names: Iterable[str]) -> str:
    listed = list(names)
    text = ", ".join(listed[:_LISTED])
    return text if len(listed) <= _LISTED else f"{text} and {len(listed) - _LISTED} more"


def _count(values: Iterator[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return dict(sorted(counts.items()))
