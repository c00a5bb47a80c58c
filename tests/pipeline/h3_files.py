"""H3 transformers as files: golden fixtures, random models, and GGUF files of either in any format.

The map from diffusers' names is written here a second time on purpose, from the published table and not from
the program: a test that used the program's own map could not find a mistake in it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
from diffusers import MiniMaxH3Transformer3DModel
from safetensors.torch import load_file
from torch import Tensor

from pipeline import engine
from pipeline.engine import Model

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "h3"

_STEMS = {
    "proj_in": "video_patch_proj",
    "audio_proj_in": "audio_patch_proj",
    "context_embedder": "condition_proj",
    "time_embedder.linear_1": "time_embedder.proj_in",
    "time_embedder.linear_2": "time_embedder.proj_out",
    "norm_out.norm": "final_layer.norm",
    "norm_out.linear": "final_layer.adaln_proj.linear",
    "proj_out": "final_layer.video_out",
    "audio_proj_out": "final_layer.audio_out",
}
_PARTS = (
    ("token_refiner.refiner_blocks.", "token_refiner.blocks."),
    ("transformer_blocks.", "blocks."),
    ("attn.norm_q", "attn.q_norm"),
    ("attn.norm_k", "attn.k_norm"),
    ("attn.to_out.0", "attn.out_proj"),
    ("ff.net.0.proj", "mlp.fc1"),
    ("ff.net.2", "mlp.fc2"),
)

TypeOf = Callable[[str, Tensor], str]
"""The GGML format of a tensor, from its community name and its values."""


@dataclass(frozen=True)
class Layout:
    """The packed rows of a fixture, under the names of `pipeline.sequence.Sequence`."""

    position_ids: Tensor
    token_tags: Tensor
    video_indices: Tensor
    audio_indices: Tensor
    text_indices: Tensor

    @property
    def rows(self) -> int:
        return self.position_ids.shape[0]


@dataclass(frozen=True)
class Case:
    """One forward pass of a golden fixture: what goes in and what must come out."""

    tensors: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def group(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose name starts so, without that start."""
        found = self.tensors.items()
        return {name.removeprefix(prefix): value for name, value in found if name.startswith(prefix)}

    @property
    def layout(self) -> Layout:
        names = Layout.__dataclass_fields__
        return Layout(**{name: self[f"in.{name}"] for name in names})

    @property
    def video(self) -> Tensor:
        return self["in.hidden_states"][0]

    @property
    def audio(self) -> Tensor:
        return self["in.audio_hidden_states"][0]

    @property
    def text(self) -> Tensor:
        return self["in.encoder_hidden_states"][0]

    @property
    def timesteps(self) -> list[float]:
        return self["in.timestep"].tolist()

    @property
    def row_timesteps(self) -> Tensor:
        return self["in.timestep"][self["in.timestep_indices"]]


def load_case(name: str) -> Case:
    """`name` as in "a_t2va_step1"."""
    return Case(load_file(FIXTURES / f"case_{name}.safetensors"))


def fixture_model(letter: str) -> tuple[dict[str, Tensor], dict]:
    """State dict under diffusers' names, and config, of golden model "a" or "b"."""
    config = json.loads((FIXTURES / f"model_{letter}_config.json").read_text())
    return load_file(FIXTURES / f"model_{letter}.safetensors"), config


def random_model(config: dict, seed: int = 7) -> MiniMaxH3Transformer3DModel:
    """diffusers' own class with weights large enough that every part of it moves the output."""
    torch.manual_seed(seed)
    model = MiniMaxH3Transformer3DModel(**config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight") and parameter.ndim == 1:
                parameter.normal_(1.0, 0.2)
            elif parameter.ndim == 1:
                parameter.normal_(0.0, 0.2)
            else:
                parameter.normal_(0.0, parameter.shape[1] ** -0.5)
    return model


def community_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """diffusers' tensors under the community's names: q, k, v stacked, fc1 = [gate; value]."""
    result: dict[str, Tensor] = {}
    for name, tensor in state.items():
        stem, ending = name.rsplit(".", 1)
        stem = _STEMS.get(stem, stem)
        for old, new in _PARTS:
            stem = stem.replace(old, new)
        value_then_gate = stem.endswith("mlp.fc1")
        result[f"{stem}.{ending}"] = torch.cat(tensor.chunk(2)[::-1]) if value_then_gate else tensor
    for name in [name for name in result if name.endswith("attn.to_q.weight")]:
        base = name.removesuffix("to_q.weight")
        parts = [result.pop(f"{base}to_{letter}.weight") for letter in "qkv"]
        result[f"{base}qkv_proj.weight"] = torch.cat(parts)
    return result


def deinterleave(state: Mapping[str, Tensor], head_width: int) -> dict[str, Tensor]:
    """The original release's names with its per-head rows of qkv_proj put into thirds."""
    result = dict(state)
    for name, tensor in state.items():
        if name.endswith("qkv_proj.weight"):
            heads = tensor.shape[0] // (3 * head_width)
            rows = tensor.reshape(heads, 3, head_width, -1).transpose(0, 1)
            result[name] = rows.reshape(tensor.shape).contiguous()
    return result


def as_stored(_name: str, tensor: Tensor) -> str:
    """The format of the tensor's own dtype."""
    return {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}[tensor.dtype]


def big_matrices(type_name: str) -> TypeOf:
    """`type_name` for the matrices of the blocks, float32 for all else."""
    matrices = ("qkv_proj.weight", "out_proj.weight", "fc1.weight", "fc2.weight")
    return lambda name, _tensor: type_name if name.endswith(matrices) else "F32"


def pack(tensor: Tensor, type_name: str) -> np.ndarray:
    """The bytes of a tensor in a format, [rows, bytes]; a vector is one row.

    Nothing here or in the gguf package writes Q2_K to Q5_K: those get random blocks with the rows' spread.
    """
    values = tensor.float().reshape(-1, tensor.shape[-1]).contiguous()
    if type_name == "BF16":
        return values.bfloat16().view(torch.int16).numpy().view(np.uint8)
    if type_name in ("F32", "F16"):
        return values.to(torch.float16 if type_name == "F16" else torch.float32).numpy().view(np.uint8)
    if type_name in ("Q4_1", "Q5_0", "Q5_1"):
        return gguf.quantize(values.numpy(), gguf.GGMLQuantizationType[type_name])
    if type_name in _RANDOM:
        return np.stack([_random_row(row, type_name) for row in values.numpy()])
    return engine.quantize_rows(type_name, values)


_RANDOM = {"Q2_K": (80, 82, 1.5), "Q3_K": (108, None, 0.0), "Q4_K": (0, 2, 7.5), "Q5_K": (0, 2, 15.5)}
"""Where the half precision scale and minimum of a block are, and the ratio of minimum to scale that puts the
middle of the levels at zero."""


def _random_row(row: np.ndarray, type_name: str) -> np.ndarray:
    """Random levels that depend on the row's values only, under scales that give it the row's spread."""
    scale_at, minimum_at, middle = _RANDOM[type_name]
    kind = gguf.GGMLQuantizationType[type_name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(zlib.crc32(row.tobytes()))
    blocks = generator.integers(0, 256, (row.size // elements, size), dtype=np.uint8)

    def scaled(scale: float) -> np.ndarray:
        blocks[:, scale_at : scale_at + 2] = np.array([scale], "<f2").view(np.uint8)
        if minimum_at is not None:
            blocks[:, minimum_at : minimum_at + 2] = np.array([middle * scale], "<f2").view(np.uint8)
        return blocks.reshape(1, -1)

    return scaled(float(row.std() / gguf.dequantize(scaled(1.0), kind).std()))[0]


def unpack(data: np.ndarray, type_name: str, shape: tuple[int, ...]) -> Tensor:
    """What the gguf package reads from those bytes."""
    kind = gguf.GGMLQuantizationType[type_name]
    return torch.from_numpy(gguf.dequantize(data, kind).astype(np.float32).reshape(shape))


def write_gguf(
    path: Path,
    tensors: Mapping[str, Tensor],
    config: Mapping | None = None,
    type_of: TypeOf = as_stored,
    prefix: str = "",
    metadata: Callable[[gguf.GGUFWriter], None] | None = None,
) -> Path:
    """Write community-named tensors; `config` (diffusers' keys) becomes `minimax_h3.*` metadata."""
    writer = gguf.GGUFWriter(path, "minimax_h3")
    if config:
        writer.add_uint32("minimax_h3.rope.dimension_count", config["rope_freq_dim"])
        writer.add_float32("minimax_h3.rope.freq_base", config["rope_theta"])
        writer.add_array("minimax_h3.patch_size", list(config["patch_size"]))
    if metadata:
        metadata(writer)
    for name, tensor in tensors.items():
        type_name = type_of(name, tensor)
        data = pack(tensor, type_name)
        data = data[0] if tensor.ndim == 1 else data
        writer.add_tensor(prefix + name, data, raw_dtype=gguf.GGMLQuantizationType[type_name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def fixture_gguf(folder: Path, letter: str) -> Path:
    """Golden model "a" or "b" as a GGUF file in its own dtypes."""
    state, config = fixture_model(letter)
    return write_gguf(folder / f"model_{letter}.gguf", community_names(state), config)


def forward(
    path: Path,
    case: Case,
    threads: int = 2,
    kernels: str | None = None,
    round_inputs: bool = False,
    **options,
) -> tuple[Tensor, Tensor]:
    """Video and audio velocity of one pass; `options` are those of `Run.velocity`."""
    with (
        Model.open(path, threads, kernels, round_inputs) as model,
        model.prepare(case.layout, case.text, case.timesteps) as run,
    ):
        return run.velocity(case.video, case.audio, case.row_timesteps, **options)


def relative_l2(result: Tensor, expected: Tensor) -> float:
    """|result - expected| / |expected|, in float64."""
    difference = (result.double() - expected.double().reshape(result.shape)).norm()
    return float(difference / expected.double().norm())
