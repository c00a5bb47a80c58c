"""Does the engine compute what diffusers computes from this file? `python -m pipeline verify`.

Both run one forward on the same random inputs: text, a keyframe, audio and video rows at three timesteps.
Every named intermediate is compared, so that a wrong tensor, kernel or layout shows at the block where it
acts and not as a strange picture. The weights diffusers gets are unpacked by the gguf package and mapped back
to its own layout, so neither the engine's reader nor its kernels judge themselves.

A file whose `attn.qkv_proj` rows are in the wrong order is consistent with itself and passes. It is caught by
`--reference`: diffusers then gets the weights of that checkpoint instead, and the tolerance grows by what the
formats of the file cost.

Tolerances are relative L2 distances, from random models of 4 and 50 blocks whose weights have 0.3, 1 and 2.5
times the usual spread, all kinds of rows, 30 to 290 of them:

| compared with           | worst intermediate measured         | tolerance |
|-------------------------|-------------------------------------|-----------|
| the same weights        | 2.9e-6, whatever their format       | 2e-5      |
| the F16 file's source   | 1.7e-3 (5.6e-4 with 4 blocks)       | 3e-3      |
| the Q8_0 file's source  | 0.051 (0.011)                       | 0.08      |
| the Q6_K file's source  | 0.12 (0.034)                        | 0.18      |
| the Q4_0 file's source  | 0.41 (0.16)                         | 0.6       |

The engine's activations are float32 with every format, so the first row holds for all of them. Rows of
`attn.qkv_proj` in the wrong order give 1.1 to 1.2 at block 0's attention.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pipeline import models
from pipeline.checkpoints import QkvOrder, Settings, open_checkpoint
from pipeline.engine import EngineConfig, Model
from pipeline.errors import ModelError
from pipeline.reference import CheckpointWeights, GgufWeights, Reference, Weights
from pipeline.sequence import Sequence, pack, row_timesteps

TOLERANCE = 2e-5
QUANT_TOLERANCE = {"F32": 0.0, "BF16": 0.0, "F16": 3e-3, "Q8_0": 0.08, "Q6_K": 0.18, "Q4_0": 0.6}
SIZES = {"small": (2, 2, 3, 9), "medium": (7, 4, 6, 40), "large": (12, 12, 20, 100)}
"""Latent frames, rows down, rows across, text rows."""

_VIDEO_TIME, _AUDIO_TIME = 0.3, 0.55
_BLOCK = re.compile(r"block(\d+)_")
_PLACES = {
    "rope_cos": "The rotary table",
    "rope_sin": "The rotary table",
    "time_proj": "The timestep embedding",
    "temb": "The timestep embedding",
    "refined_text": "The token refiner",
    "packed_input": "The input projection",
    "norm_out": "The output layer",
    "video_velocity": "The output layer",
    "audio_velocity": "The output layer",
}


@dataclass(frozen=True)
class Inputs:
    """One forward's arguments: `text` [n, text_dim], `video` [Nv, width], `audio` [Na, channels], float32."""

    sequence: Sequence
    text: Tensor
    video: Tensor
    audio: Tensor
    row_timesteps: Tensor

    def for_diffusers(self) -> dict[str, Tensor]:
        """The same, as the arguments of diffusers' forward."""
        # The engine keeps its tables in the order in which timesteps are first named; so does this.
        times = self.timesteps()
        indices = (self.row_timesteps[:, None] == times[None]).to(torch.int64).argmax(1)
        return {
            "hidden_states": self.video[None],
            "audio_hidden_states": self.audio[None],
            "encoder_hidden_states": self.text[None],
            "timestep": times,
            "timestep_indices": indices,
            "token_tags": self.sequence.token_tags,
            "position_ids": self.sequence.position_ids,
            "video_indices": self.sequence.video_indices,
            "audio_indices": self.sequence.audio_indices,
            "text_indices": self.sequence.text_indices,
        }

    def timesteps(self) -> Tensor:
        """The distinct timesteps, ascending."""
        return torch.unique(self.row_timesteps)


@dataclass(frozen=True)
class Comparison:
    """One intermediate: distance of the engine from diffusers, relative in the L2 norm, and at most."""

    name: str
    relative: float
    largest: float
    agrees: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `verify`."""
    parser.add_argument(
        "--model", type=Path, required=True, help="a .gguf file, or a model folder that holds one"
    )
    parser.add_argument(
        "--reference", type=Path, help="compare with this checkpoint's weights instead of the file's own"
    )
    parser.add_argument(
        "--qkv", choices=("interleaved", "stacked"), help="row order of the reference, if unclear"
    )
    parser.add_argument("--rows", choices=tuple(SIZES), default="small", help="how long a sequence to run")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random inputs")
    parser.add_argument("--threads", type=int, default=0, help="engine threads, 0 for all")
    parser.add_argument("--kernels", help="engine kernels to check, for example plain")


def run(args: argparse.Namespace) -> int:
    """Print the table; 0 when everything agrees, 1 when something departs."""
    path = find_transformer(args.model)
    with Model.open(path, threads=args.threads, kernels=args.kernels) as model:
        own = GgufWeights(path)
        weights, settings = _judge(own, model.config, args.reference, args.qkv)
        tolerance = tolerance_for(own.types, reference=args.reference is not None)
        facts = model.describe()
        sys.stdout.write(f"{path}: {facts['kernels']} kernels, tolerance {tolerance:g}\n{_HEADER}\n")
        results = compare(
            model,
            Reference(weights, settings),
            make_inputs(model.config, args.rows, args.seed),
            tolerance,
            lambda result: sys.stdout.write(f"{_line(result)}\n"),
        )
    sys.stdout.write(f"{conclusion(results)}\n")
    return 0 if all(result.agrees for result in results) else 1


def find_transformer(path: Path) -> Path:
    """The GGUF file of a model: `path` itself, or the one in that folder. Raises ModelError."""
    if path.is_dir():
        return models.find(path).require("transformer")
    if not path.exists():
        raise ModelError(f"{path} does not exist.")
    return path


def tolerance_for(types: dict[str, int], reference: bool) -> float:
    """The largest relative L2 distance that counts as agreement, for a file with tensors of these formats.

    Without a reference both sides have the same weights and float32 activations, whatever the formats:
    TOLERANCE. Against other weights, the coarsest format decides.
    """
    if not reference:
        return TOLERANCE
    return max(TOLERANCE, *(QUANT_TOLERANCE.get(name, 1.0) for name in types))


def make_inputs(config: EngineConfig, rows: str = "small", seed: int = 0) -> Inputs:
    """Random inputs for a model of these dimensions: all kinds of rows, the same for the same seed."""
    frames, down, across, text_rows = SIZES[rows]
    patch = config.patch_size
    tags = torch.ones(text_rows, dtype=torch.int64)
    tags[1 : text_rows // 2] = 0  # as the vision block of the keyframe
    shape = (frames * patch[0], down * patch[1], across * patch[2])
    sequence = pack(tags, shape, patch, audio_latents=2 * frames + 1, keyframes=("first",))
    generator = torch.Generator().manual_seed(seed)
    return Inputs(
        sequence=sequence,
        text=torch.randn(text_rows, config.text_dim, generator=generator),
        video=torch.randn(sequence.video_indices.shape[0], config.video_width, generator=generator),
        audio=torch.randn(sequence.audio_indices.shape[0], config.audio_channels, generator=generator),
        row_timesteps=row_timesteps(sequence, _VIDEO_TIME, _AUDIO_TIME),
    )


def engine_settings(config: EngineConfig) -> Settings:
    """What the shapes do not tell, as the engine took it from the file."""
    return Settings(
        patch=config.patch_size,
        rope_frequencies=config.rope_frequencies,
        rope_theta=config.rope_theta,
        norm_epsilon=config.norm_epsilon,
        qk_norm_epsilon=config.qk_norm_epsilon,
        final_norm_epsilon=config.final_norm_epsilon,
    )


def compare(
    model: Model,
    reference: Reference,
    inputs: Inputs,
    tolerance: float,
    report: Callable[[Comparison], object] = lambda result: None,
) -> list[Comparison]:
    """Run both and compare every intermediate in the order of computation.

    The engine's intermediates wait on the disk, so that memory does not grow with the number of blocks.
    """
    results: list[Comparison] = []
    with tempfile.TemporaryDirectory(prefix="firstlook-verify-") as folder:
        place = Path(folder)
        _run_engine(model, inputs, lambda name, values: np.save(place / f"{name}.npy", values.numpy()))

        def check(name: str, expected: Tensor) -> None:
            found = np.load(place / f"{name}.npy")
            results.append(_compare(name, found, expected.numpy(), tolerance))
            report(results[-1])

        reference.run(inputs.for_diffusers(), check)
    return results


def conclusion(results: list[Comparison]) -> str:
    """One sentence: everything agrees, or what departs first."""
    first = next((result for result in results if not result.agrees), None)
    if first is None:
        worst = max(results, key=lambda result: result.relative)
        return (
            f"All {len(results)} intermediates agree; the farthest is {worst.name} at {worst.relative:.1e}."
        )
    block = _BLOCK.match(first.name)
    where = f"Block {block[1]}" if block else _PLACES[first.name]
    return f"{where} departs first: {first.name} by {first.relative:.2e}."


def _judge(
    own: GgufWeights, config: EngineConfig, reference: Path | None, qkv: QkvOrder | None
) -> tuple[Weights, Settings]:
    """The weights diffusers gets, and what their shapes do not tell."""
    if reference is None:
        return own, engine_settings(config)
    if reference.suffix == ".gguf":
        weights: Weights = GgufWeights(reference)
        settings = engine_settings(config)
    else:
        checkpoint = open_checkpoint(reference, qkv)
        weights, settings = CheckpointWeights(checkpoint), checkpoint.settings
    if weights.dimensions != own.dimensions:
        raise ModelError(f"{own.path} and {reference} are models of different dimensions.")
    return weights, settings


def _run_engine(model: Model, inputs: Inputs, keep: Callable[[str, Tensor], None]) -> None:
    with model.prepare(inputs.sequence, inputs.text, inputs.timesteps().tolist()) as prepared:
        video, audio = prepared.velocity(inputs.video, inputs.audio, inputs.row_timesteps, dump=keep)
    keep("video_velocity", video)
    keep("audio_velocity", audio)


def _compare(name: str, found: np.ndarray, expected: np.ndarray, tolerance: float) -> Comparison:
    if found.shape != expected.shape:
        return Comparison(name, float("inf"), float("inf"), agrees=False)
    difference = found.astype(np.float64) - expected
    norm = float(np.linalg.norm(expected.astype(np.float64)))
    distance = float(np.linalg.norm(difference))
    relative = distance / norm if norm else distance
    largest = float(np.abs(difference).max(initial=0.0))
    # Written so that NaN departs.
    return Comparison(name, relative, largest, agrees=relative <= tolerance)


_HEADER = f"{'name':<18} {'relative L2':>11} {'max abs':>9}  verdict"


def _line(result: Comparison) -> str:
    verdict = "ok" if result.agrees else "departs"
    return f"{result.name:<18} {result.relative:>11.2e} {result.largest:>9.2e}  {verdict}"
