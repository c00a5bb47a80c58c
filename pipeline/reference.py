"""diffusers' own MiniMax-H3 transformer as the judge, fed one tensor at a time.

The model is built without weights. Just before a layer runs, its weights are read and unpacked to float32;
right after, they are dropped. diffusers' forward is not touched, so what is compared is diffusers, and a 33 B
model needs the memory of its largest layer only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import gguf
import numpy as np
import torch
from diffusers import MiniMaxH3Transformer3DModel
from diffusers.models.transformers.transformer_minimax_h3 import MiniMaxH3RotaryPosEmbed
from torch import Tensor, nn

from pipeline.checkpoints import Checkpoint, Settings
from pipeline.errors import ModelError
from pipeline.layouts import PREFIXES, Dimensions, Part, diffusers_parts, measure

Record = Callable[[str, Tensor], None]


class Weights(Protocol):
    """Tensors under their `stacked` names, read by rows as float32 [rows, columns]."""

    dimensions: Dimensions

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray: ...


class GgufWeights:
    """The weights of a GGUF file, unpacked by the gguf package: independent of the engine's own reader."""

    def __init__(self, path: Path) -> None:
        try:
            reader = gguf.GGUFReader(path)
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise ModelError(
                f"{path} is not a GGUF file or is cut short: convert or copy it again."
            ) from error
        self.path = path
        self._tensors = {_without_prefix(tensor.name): tensor for tensor in reader.tensors}
        shapes = {name: tuple(int(n) for n in reversed(t.shape)) for name, t in self._tensors.items()}
        dimensions, bad = measure(shapes, "stacked")
        if dimensions is None:
            raise ModelError(
                f"{path} is not a MiniMax-H3 denoiser: {', '.join(bad)} is missing or mis-shaped."
            )
        self.dimensions = dimensions

    @property
    def types(self) -> dict[str, int]:
        """How many tensors have each format."""
        counts: dict[str, int] = {}
        for tensor in self._tensors.values():
            counts[tensor.tensor_type.name] = counts.get(tensor.tensor_type.name, 0) + 1
        return counts

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop) as float32. Raises ModelError for a tensor the file lacks."""
        if name not in self._tensors:
            raise ModelError(f"{self.path} lacks tensor {name}: convert it again.")
        tensor = self._tensors[name]
        rows = np.atleast_2d(tensor.data)[start:stop]
        return gguf.quants.dequantize(rows, tensor.tensor_type).reshape(stop - start, int(tensor.shape[0]))


class CheckpointWeights:
    """The weights of a safetensors checkpoint, in any layout `pipeline.checkpoints` reads."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.dimensions = checkpoint.dimensions
        self._tensors = {tensor.name: tensor for tensor in checkpoint.tensors}

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop) as float32."""
        return self._tensors[name].read_rows(start, stop)


class Reference:
    """diffusers' transformer over `weights`; `settings` are what the shapes cannot tell."""

    def __init__(self, weights: Weights, settings: Settings) -> None:
        dims = weights.dimensions
        with torch.device("meta"):
            model = MiniMaxH3Transformer3DModel(**_config(dims, settings))
        # The rotary table is computed, not stored: it needs a real one.
        model.rope = MiniMaxH3RotaryPosEmbed(settings.rope_frequencies, settings.rope_theta)
        self._model = model.eval()
        _load_lazily(model, weights)

    @torch.no_grad()
    def run(self, arguments: Mapping[str, Tensor], record: Record) -> None:
        """One forward in float32. `arguments` are those of diffusers' forward, batch of one included.

        `record` gets every intermediate the engine can show, under the engine's name for it, as [rows,
        columns], in the order in which they arise.
        """
        handles = list(_observe(self._model, record))
        try:
            video, audio = self._model(**arguments, return_dict=False)
        finally:
            for handle in handles:
                handle.remove()
        record("video_velocity", video[0])
        record("audio_velocity", audio[0])


def _without_prefix(name: str) -> str:
    prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
    return name.removeprefix(prefix)


def _config(dims: Dimensions, settings: Settings) -> dict[str, Any]:
    patch_volume = settings.patch[0] * settings.patch[1] * settings.patch[2]
    return {
        "num_attention_heads": dims.heads,
        "attention_head_dim": dims.head_dim,
        "hidden_size": dims.hidden,
        "num_layers": dims.blocks,
        "num_refiner_layers": dims.refiner_blocks,
        "ffn_dim": dims.feed_forward,
        "in_channels": dims.video_width // patch_volume,
        "audio_in_channels": dims.audio_width,
        "patch_size": settings.patch,
        "text_dim": dims.text_width,
        "freq_dim": dims.time_frequencies,
        "time_embed_hidden_dim": dims.time_hidden,
        "time_embed_dim": dims.time_width,
        "rope_freq_dim": settings.rope_frequencies,
        "rope_theta": settings.rope_theta,
        "norm_eps": settings.norm_epsilon,
        "qk_norm_eps": settings.qk_norm_epsilon,
        "final_norm_eps": settings.final_norm_epsilon,
    }


# ---- weights on demand ----


def _load_lazily(model: nn.Module, weights: Weights) -> None:
    pieces = diffusers_parts(weights.dimensions)
    for path, module in model.named_modules():
        empty = {name: parameter for name, parameter in module._parameters.items() if parameter is not None}
        if not empty:
            continue
        wanted = {name: pieces[f"{path}.{name}"] for name in empty}

        def fill(module: nn.Module, _: object, wanted: dict[str, list[Part]] = wanted) -> None:
            for name, found in wanted.items():
                module._parameters[name] = nn.Parameter(_gather(weights, found), requires_grad=False)

        def drop(module: nn.Module, *_: object, empty: dict[str, nn.Parameter] = empty) -> None:
            module._parameters.update(empty)

        module.register_forward_pre_hook(fill)
        module.register_forward_hook(drop)


def _gather(weights: Weights, pieces: list[Part]) -> Tensor:
    rows = [torch.from_numpy(weights.read_rows(part.name, part.start, part.stop).copy()) for part in pieces]
    joined = torch.cat(rows) if len(rows) > 1 else rows[0]
    return joined[0] if len(pieces[0].shape) == 1 else joined


# ---- intermediates under the engine's names ----


def _observe(model: MiniMaxH3Transformer3DModel, record: Record) -> Iterator[Any]:
    def after(name: str, pick: Callable[[Any], Tensor]) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: object, output: Any) -> None:
            record(name, pick(output))

        return hook

    def before(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            record(name, inputs[0][0])

        return hook

    def rotary(module: nn.Module, inputs: object, output: tuple[Tensor, Tensor]) -> None:
        # diffusers repeats the angles for the second half of each pair.
        for name, table in zip(("rope_cos", "rope_sin"), output, strict=True):
            record(name, table[:, : table.shape[1] // 2])

    yield model.rope.register_forward_hook(rotary)
    yield model.time_proj.register_forward_hook(after("time_proj", _whole))
    yield model.time_embedder.register_forward_hook(after("temb", _whole))
    yield model.token_refiner.register_forward_hook(after("refined_text", _first))
    yield model.transformer_blocks[0].register_forward_pre_hook(before("packed_input"))
    for index, block in enumerate(model.transformer_blocks):
        yield block.adaln_proj.register_forward_hook(after(f"block{index}_adaln", _joined))
        yield block.attn.register_forward_pre_hook(before(f"block{index}_attn_in"))
        yield block.attn.register_forward_hook(after(f"block{index}_attn_out", _first))
        yield block.ff.register_forward_pre_hook(before(f"block{index}_ff_in"))
        yield block.ff.register_forward_hook(after(f"block{index}_ff_out", _first))
        yield block.register_forward_hook(after(f"block{index}_out", _first))
    yield model.norm_out.register_forward_hook(after("norm_out", _first))


def _whole(output: Tensor) -> Tensor:
    return output


def _first(output: Tensor) -> Tensor:
    return output[0]


def _joined(output: tuple[Tensor, ...]) -> Tensor:
    return torch.cat(output, dim=-1)
