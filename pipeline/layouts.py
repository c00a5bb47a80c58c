"""How MiniMax-H3's tensors are named and laid out, and the one map between the layouts.

Four layouts hold the same numbers:

* `stacked`: ComfyUI single files, and every GGUF. `attn.qkv_proj` is [q; k; v], `mlp.fc1` [gate; value].
* `interleaved`: the original release. Same names and shapes as `stacked`, but `attn.qkv_proj` holds the rows
  of each head together: row 3*d*g + c*d + j is channel j of q (c = 0), k (1) or v (2) of head g, d channels
  wide.
* `split`: diffusers. Own names, `to_q`, `to_k`, `to_v` apart, and `ff.net.0.proj` is [value; gate]: the
  halves of fc1 the other way round.
* `fused`: diffusers after `fuse_qkv_projections`: `to_qkv` is [q; k; v].

Names in this program are those of `stacked`. The map follows diffusers' convert_minimax_h3_to_diffusers.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Layout = Literal["stacked", "interleaved", "split", "fused"]

MODALITIES, MODULATIONS = 3, 6
PREFIXES = ("model.diffusion_model.", "diffusion_model.")
"""What ComfyUI may put before every name."""

_DIFFUSERS_STEMS = {
    "video_patch_proj": "proj_in",
    "audio_patch_proj": "audio_proj_in",
    "condition_proj": "context_embedder",
    "time_embedder.proj_in": "time_embedder.linear_1",
    "time_embedder.proj_out": "time_embedder.linear_2",
    "token_refiner.final_norm": "token_refiner.final_norm",
    "final_layer.norm": "norm_out.norm",
    "final_layer.adaln_proj.linear": "norm_out.linear",
    "final_layer.video_out": "proj_out",
    "final_layer.audio_out": "audio_proj_out",
}
_DIFFUSERS_BLOCK_STEMS = {
    "norm1": "norm1",
    "norm2": "norm2",
    "attn.q_norm": "attn.norm_q",
    "attn.k_norm": "attn.norm_k",
    "attn.out_proj": "attn.to_out.0",
    "mlp.fc1": "ff.net.0.proj",
    "mlp.fc2": "ff.net.2",
    "adaln_proj.linear": "adaln_proj.linear",
}
_BLOCK = re.compile(r"(token_refiner\.)?blocks\.(\d+)\.(.+)\.(weight|bias)")


@dataclass(frozen=True)
class Dimensions:
    """Every size that the shapes of the tensors tell."""

    hidden: int
    heads: int
    head_dim: int
    feed_forward: int
    blocks: int
    refiner_blocks: int
    video_width: int
    audio_width: int
    text_width: int
    time_frequencies: int
    time_hidden: int
    time_width: int

    @property
    def inner(self) -> int:
        """Width of all heads together, which may exceed `hidden`."""
        return self.heads * self.head_dim


@dataclass(frozen=True)
class Part:
    """Rows [start, stop) of the tensor `name`, whose whole shape is `shape`. A vector is one row."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


def shapes(dims: Dimensions) -> dict[str, tuple[int, ...]]:
    """Every tensor of a model of these dimensions, in the order of a file, under the `stacked` names."""
    hidden, time = dims.hidden, dims.time_width
    found = {
        **_linear("video_patch_proj", hidden, dims.video_width),
        **_linear("audio_patch_proj", hidden, dims.audio_width),
        **_linear("condition_proj", hidden, dims.text_width),
        **_linear("time_embedder.proj_in", dims.time_hidden, dims.time_frequencies),
        **_linear("time_embedder.proj_out", time, dims.time_hidden),
    }
    for index in range(dims.refiner_blocks):
        found |= _block_shapes(f"token_refiner.blocks.{index}", dims)
    found["token_refiner.final_norm.weight"] = (hidden,)
    for index in range(dims.blocks):
        found |= _block_shapes(f"blocks.{index}", dims)
        found |= _linear(f"blocks.{index}.adaln_proj.linear", MODALITIES * MODULATIONS * hidden, time)
    found["final_layer.norm.weight"] = (hidden,)
    found |= _linear("final_layer.adaln_proj.linear", 2 * hidden, time)
    found |= _linear("final_layer.video_out", dims.video_width, hidden)
    found |= _linear("final_layer.audio_out", dims.audio_width, hidden)
    return found


def parts(name: str, shape: tuple[int, ...], dims: Dimensions, layout: Layout) -> list[Part]:
    """The rows that make up tensor `name` of `shape` (both from `shapes`), in order, as found in `layout`."""
    rows = math.prod(shape[:-1])
    if name.endswith("attn.qkv_proj.weight"):
        return _qkv_parts(name, shape, dims, layout)
    if layout in ("stacked", "interleaved"):
        return [Part(name, shape, 0, rows)]
    source = _diffusers_name(name)
    if name.endswith("mlp.fc1.weight"):
        half = dims.feed_forward
        return [Part(source, shape, half, 2 * half), Part(source, shape, 0, half)]
    return [Part(source, shape, 0, rows)]


def diffusers_parts(dims: Dimensions) -> dict[str, list[Part]]:
    """The inverse for `split`: for each parameter of diffusers' model, its rows of `stacked` tensors."""
    found: dict[str, list[tuple[int, Part]]] = {}
    for name, shape in shapes(dims).items():
        row = 0
        for part in parts(name, shape, dims, "split"):
            count = part.stop - part.start
            found.setdefault(part.name, []).append((part.start, Part(name, shape, row, row + count)))
            row += count
    return {name: [part for _, part in sorted(pieces, key=_start)] for name, pieces in found.items()}


def measure(found: Mapping[str, tuple[int, ...]], layout: Layout) -> tuple[Dimensions | None, list[str]]:
    """Dimensions from the shapes of a file's tensors (names of `layout`), or None and the names that are
    missing or are not of the expected rank."""
    diffusers = layout in ("split", "fused")
    blocks, refiner_blocks = (_block_count(found, diffusers, refiner) for refiner in (False, True))
    wanted = {
        "video": "video_patch_proj.weight",
        "audio": "audio_patch_proj.weight",
        "text": "condition_proj.weight",
        "time_in": "time_embedder.proj_in.weight",
        "time_out": "time_embedder.proj_out.weight",
        "head": "blocks.0.attn.q_norm.weight",
        "out": "blocks.0.attn.out_proj.weight",
        "down": "blocks.0.mlp.fc2.weight",
    }
    names = {role: _diffusers_name(name) if diffusers else name for role, name in wanted.items()}
    ranks = {role: 1 if role == "head" else 2 for role in wanted}
    bad = [name for role, name in names.items() if len(found.get(name, ())) != ranks[role]]
    if bad:
        return None, bad
    size = {role: found[name] for role, name in names.items()}
    head_dim, inner = size["head"][0], size["out"][1]
    if head_dim == 0 or inner % head_dim:
        return None, [names["head"], names["out"]]
    return Dimensions(
        hidden=size["video"][0],
        heads=inner // head_dim,
        head_dim=head_dim,
        feed_forward=size["down"][1],
        blocks=blocks,
        refiner_blocks=refiner_blocks,
        video_width=size["video"][1],
        audio_width=size["audio"][1],
        text_width=size["text"][1],
        time_frequencies=size["time_in"][1],
        time_hidden=size["time_in"][0],
        time_width=size["time_out"][0],
    ), []


def _start(piece: tuple[int, Part]) -> int:
    return piece[0]


def _linear(name: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _block_shapes(prefix: str, dims: Dimensions) -> dict[str, tuple[int, ...]]:
    hidden, inner, forward = dims.hidden, dims.inner, dims.feed_forward
    return {
        f"{prefix}.norm1.weight": (hidden,),
        f"{prefix}.attn.qkv_proj.weight": (3 * inner, hidden),
        f"{prefix}.attn.q_norm.weight": (dims.head_dim,),
        f"{prefix}.attn.k_norm.weight": (dims.head_dim,),
        f"{prefix}.attn.out_proj.weight": (hidden, inner),
        f"{prefix}.norm2.weight": (hidden,),
        f"{prefix}.mlp.fc1.weight": (2 * forward, hidden),
        f"{prefix}.mlp.fc2.weight": (hidden, forward),
    }


def _qkv_parts(name: str, shape: tuple[int, ...], dims: Dimensions, layout: Layout) -> list[Part]:
    inner, width = dims.inner, dims.head_dim
    if layout == "stacked":
        return [Part(name, shape, 0, 3 * inner)]
    if layout == "interleaved":
        starts = [(3 * head + which) * width for which in range(3) for head in range(dims.heads)]
        return [Part(name, shape, start, start + width) for start in starts]
    stem = _diffusers_block(name)[0] + "attn."
    if layout == "fused":
        return [Part(f"{stem}to_qkv.weight", shape, 0, 3 * inner)]
    return [Part(f"{stem}to_{which}.weight", (inner, shape[1]), 0, inner) for which in "qkv"]


def _diffusers_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem in _DIFFUSERS_STEMS:
        return f"{_DIFFUSERS_STEMS[stem]}.{kind}"
    prefix, rest = _diffusers_block(name)
    return f"{prefix}{_DIFFUSERS_BLOCK_STEMS[rest]}.{kind}"


def _diffusers_block(name: str) -> tuple[str, str]:
    """diffusers' prefix of a block's tensor, and the rest of the `stacked` name without weight or bias."""
    match = _BLOCK.fullmatch(name)
    if match is None:
        raise KeyError(name)
    return ("token_refiner.refiner_blocks." if match[1] else "transformer_blocks.") + f"{match[2]}.", match[3]


def _block_count(names: Mapping[str, object], diffusers: bool, refiner: bool) -> int:
    if diffusers:
        prefix = r"token_refiner\.refiner_blocks" if refiner else "transformer_blocks"
    else:
        prefix = r"token_refiner\.blocks" if refiner else "blocks"
    pattern = re.compile(rf"{prefix}\.(\d+)\.")
    highest = max((int(match[1]) + 1 for name in names if (match := pattern.match(name))), default=0)
    return min(highest, len(names))  # a wild index is then one unknown name, not a billion missing ones
