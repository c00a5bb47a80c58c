"""Starting noise whose composition depends on the seed alone, not on the size of the picture.

A preview and its render have different shapes, so noise drawn value by value would share nothing between
them. Here the *frequencies* are drawn: independent standard normal coefficients of an orthonormal DCT-II
over time, height and width. The lowest ones come from one generator in a block of fixed size, whatever the
shape; the rest from a second. The transform is orthonormal, so the field is exactly independent standard
normal noise at every size, and large blotches lie in the same place at every size and length: low-passed to
the same grid, two fields of a seed are equal up to the scale `sqrt(ratio of sizes)`.

Seeds have 64 bits, all of them used. (torch's CPU generator keeps only the low 32.) The bits come from
numpy's Philox, so fields do not equal `torch.randn` of the same seed, nor what other programs draw; and
numpy does not promise its normal distribution for ever, so a seed repeats exactly with the pinned numpy
only.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pipeline.errors import RequestError

SEED_LIMIT = 2**64
LOW = (7, 12, 12)
"""Shared frequencies over (time, height, width): all of a 192×112 field at 16 pixels a latent, whichever way
up."""
_SHARED, _OWN, _AUDIO = 0, 1, 2


def noise(seed: int, shape: tuple[int, int, int, int]) -> Tensor:
    """Standard normal latents [C, T, h, w], float32. Raises RequestError for a seed outside 0 .. 2^64 - 1."""
    shared = _generator(seed, _SHARED).standard_normal((shape[0], *LOW))
    coefficients = _generator(seed, _OWN).standard_normal(shape)
    low = (slice(None), *(slice(min(a, b)) for a, b in zip(LOW, shape[1:], strict=True)))
    coefficients[low] = shared[low]
    return torch.from_numpy(_inverse_dct(coefficients).astype(np.float32))


def audio_noise(seed: int, latents: int, channels: int) -> Tensor:
    """Standard normal audio rows [2 * latents, channels], float32."""
    drawn = _generator(seed, _AUDIO).standard_normal((2 * latents, channels))
    return torch.from_numpy(drawn.astype(np.float32))


def dct_matrix(size: int) -> np.ndarray:
    """The orthonormal DCT-II as a matrix [frequency, place], float64."""
    frequency, place = np.arange(size)[:, None], np.arange(size)[None, :]
    matrix = np.sqrt(2.0 / size) * np.cos(np.pi * frequency * (place + 0.5) / size)
    matrix[0] = np.sqrt(1.0 / size)
    return matrix


def _inverse_dct(coefficients: np.ndarray) -> np.ndarray:
    field = coefficients
    for axis in (1, 2, 3):
        field = np.moveaxis(np.moveaxis(field, axis, -1) @ dct_matrix(field.shape[axis]), -1, axis)
    return np.ascontiguousarray(field)


def _generator(seed: int, stream: int) -> np.random.Generator:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEED_LIMIT:
        raise RequestError(
            "seed", f"The seed must be a whole number from 0 to {SEED_LIMIT - 1}, not {seed!r}."
        )
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(stream,))))
