"""Packed positions of MiniMax-H3 for a text-to-video request, for any patch size.

Rows are packed as ``[text | video]`` (Firefly has no sound, so it has zero audio rows). Text row j sits at
``(j, 0, 0)``; the clock of the video starts at the number of text rows; the spatial grid is normalised by
area, so the
same place in the picture has the same coordinate at every size.
"""

from __future__ import annotations

import numpy as np
import torch

SPATIAL_SPAN = 32.0
FRAME_UNIT = 5.0 / 3.0
FRAMES_PER_LATENT = (1, 4, 4, 4, 4)


def spatial_grid(length: int, height: int, width: int, patch: int = 1) -> np.ndarray:
    """Coordinates of one axis of `length` latents on a `height` x `width` latent canvas, shape (length /
    patch,).
    """
    ratio = length / np.sqrt(float(height * width))
    count = length // patch
    return SPATIAL_SPAN * ((1.0 - ratio) / 2.0 + np.arange(count) * ratio / count)


def latent_clock(latent_frames: int) -> np.ndarray:
    """Start time of every latent frame relative to the first one, in clock units, shape (latent_frames,)."""
    spans = [FRAME_UNIT * FRAMES_PER_LATENT[i % 5] for i in range(latent_frames)]
    return np.concatenate(([0.0], np.cumsum(spans)[:-1]))


def video_positions(frames: list[int], height: int, width: int, patch: int = 1) -> np.ndarray:
    """Positions (t, h, w) of the given latent frames with the clock at 0, float64, shape
    (len(frames)*h*w/p^2, 3).
    """
    clock = latent_clock(max(frames) + 1)[frames]
    rows = spatial_grid(height, height, width, patch)
    columns = spatial_grid(width, height, width, patch)
    grid = np.stack(np.meshgrid(clock, rows, columns, indexing="ij"), axis=-1)
    return grid.reshape(-1, 3)


def packed_positions(
    text_rows: int, latent_frames: int, height: int, width: int, patch: int = 1
) -> np.ndarray:
    """Positions of one whole request, float64, shape (text_rows + latent_frames*h*w/p^2, 3)."""
    text = np.zeros((text_rows, 3))
    text[:, 0] = np.arange(text_rows)
    video = video_positions(list(range(latent_frames)), height, width, patch)
    video[:, 0] += text_rows
    return np.concatenate([text, video])


def rotary_tables(positions: torch.Tensor, freq_dim: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Half-width cos and sin tables, (..., 3*freq_dim) each, for float32 positions (..., 3)."""
    exponent = torch.arange(0, 2 * freq_dim, 2, dtype=torch.float32) / (2 * freq_dim)
    inv_freq = 1.0 / (theta**exponent)
    angles = (positions.to(torch.float32).unsqueeze(-1) * inv_freq).flatten(-2)
    return angles.cos(), angles.sin()
