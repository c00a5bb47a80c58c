"""How rows pack: one sequence of text, keyframes, audio and video for the transformer.

MiniMax-H3 attends over a single packed sequence, `[text n | keyframes k*rf | audio 2A | video T*rf]`, where
`rf` is the number of rows of a latent frame. Every row has a rotary position (t, h, w), a modality tag that
selects its modulation, and a timestep. The clock of all media rows starts at `n`, so a longer prompt shifts
it: two prompts of different length need two sequences. Positions are built in float64, in the order of
operations of diffusers' `MiniMaxH3PrepareLayoutStep`, and equal its results bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.errors import ModelError

VIDEO_TAG, TEXT_TAG, AUDIO_TAG = 0, 1, 2
STEREO = 2
KEYFRAME_TIMESTEP = 0.999
"""Keyframe rows are held just short of clean: the model was trained with them very slightly noised."""
_CLOCK_PER_FRAME = 5.0 / 3.0  # 24 frames a second, 40 clock units a second
_FRAMES_PER_LATENT = (1, 4, 4, 4, 4)
_SPATIAL_SPAN = 32


@dataclass(frozen=True)
class Sequence:
    """One packed layout of S rows.

    `position_ids` [S, 3] float64, `token_tags` [S] int64 (0 video, 1 text, 2 audio). The index lists (int64)
    give the packed place of each row of the video, audio and text inputs; the first `condition_rows` of
    `video_indices` are keyframes, which are inputs only. `latent_shape` is (T, h, w), `audio_latents` counts
    one channel.
    """

    position_ids: Tensor
    token_tags: Tensor
    video_indices: Tensor
    audio_indices: Tensor
    text_indices: Tensor
    condition_rows: int
    latent_shape: tuple[int, int, int]
    patch: tuple[int, int, int]
    audio_latents: int

    @property
    def rows(self) -> int:
        """S, the length of the packed sequence."""
        return self.position_ids.shape[0]

    @property
    def text_rows(self) -> int:
        return self.text_indices.shape[0]

    @property
    def video_rows(self) -> int:
        """Generated video rows, keyframes not counted."""
        return self.video_indices.shape[0] - self.condition_rows


def pack(
    text_tags: Tensor,
    latent_shape: tuple[int, int, int],
    patch: tuple[int, int, int],
    audio_latents: int = 0,
    keyframes: tuple[str, ...] = (),
) -> Sequence:
    """Lay out one request.

    `text_tags` [n]: 1 for a text row, 0 for the rows of a keyframe's vision block. `latent_shape`: (T, h,
    w). `audio_latents`: A of one channel. `keyframes`: "first" and/or "last", in packed order. Raises
    ModelError for a patch that spans several latent frames (no released model has one, so no rule for its
    positions exists) or a shape that is not whole patches.
    """
    _check_shape(latent_shape, patch)
    frames, height, width = latent_shape
    text = text_tags.shape[0]
    frame_grid, width_axis = _frame_grid(height, width, patch)
    per_frame = frame_grid.shape[0]
    condition_start = text
    audio_start = condition_start + len(keyframes) * per_frame
    video_start = audio_start + STEREO * audio_latents
    total = video_start + frames * per_frame

    positions = torch.zeros(total, 3, dtype=torch.float64)
    positions[:text, 0] = torch.arange(text, dtype=torch.float64)
    for index, anchor in enumerate(keyframes):
        rows = slice(condition_start + index * per_frame, condition_start + (index + 1) * per_frame)
        positions[rows, 0] = _anchor_time(anchor, frames, text)
        positions[rows, 1:] = frame_grid
    positions[audio_start:video_start] = _audio_grid(audio_latents, text, width_axis)
    positions[video_start:, 0] = _frame_times(frames, text).repeat_interleave(per_frame)
    positions[video_start:, 1:] = frame_grid.repeat(frames, 1)

    tags = torch.full((total,), VIDEO_TAG, dtype=torch.int64)
    tags[:text] = text_tags.to(torch.int64)
    tags[audio_start:video_start] = AUDIO_TAG
    return Sequence(
        position_ids=positions,
        token_tags=tags,
        video_indices=torch.cat(
            [torch.arange(condition_start, audio_start), torch.arange(video_start, total)]
        ),
        audio_indices=torch.arange(audio_start, video_start),
        text_indices=torch.arange(text),
        condition_rows=len(keyframes) * per_frame,
        latent_shape=latent_shape,
        patch=patch,
        audio_latents=audio_latents,
    )


def row_timesteps(sequence: Sequence, t_video: float, t_audio: float) -> Tensor:
    """The timestep of every row, [S] float32: text follows the video, keyframes stay at 0.999 or above."""
    times = torch.full((sequence.rows,), t_video, dtype=torch.float32)
    times[sequence.audio_indices] = t_audio
    times[sequence.video_indices[: sequence.condition_rows]] = keyframe_timestep(t_video)
    return times


def keyframe_timestep(t_video: float) -> float:
    """The timestep of keyframe rows beside video rows at `t_video`, a float32 value."""
    return max(float(np.float32(KEYFRAME_TIMESTEP)), t_video)


def patchify(latents: Tensor, patch: tuple[int, int, int]) -> Tensor:
    """Latents [C, T, h, w] to rows [N, C*pt*ph*pw]: frame-major then row-major; columns are channel,
    patch."""
    channels, frames, height, width = latents.shape
    _check_whole((frames, height, width), patch)
    pt, ph, pw = patch
    split = latents.reshape(channels, frames // pt, pt, height // ph, ph, width // pw, pw)
    return split.permute(1, 3, 5, 0, 2, 4, 6).reshape(-1, channels * pt * ph * pw).contiguous()


def unpatchify(rows: Tensor, latent_shape: tuple[int, int, int], patch: tuple[int, int, int]) -> Tensor:
    """The inverse of `patchify`: rows [N, C*pt*ph*pw] to latents [C, T, h, w]."""
    _check_whole(latent_shape, patch)
    (frames, height, width), (pt, ph, pw) = latent_shape, patch
    channels = rows.shape[1] // (pt * ph * pw)
    split = rows.reshape(frames // pt, height // ph, width // pw, channels, pt, ph, pw)
    return split.permute(3, 0, 4, 1, 5, 2, 6).reshape(channels, frames, height, width).contiguous()


def audio_to_rows(latents: Tensor) -> Tensor:
    """Audio latents [2, channels, A] to rows [2*A, channels], the left channel's first."""
    return latents.transpose(1, 2).reshape(-1, latents.shape[1]).contiguous()


def rows_to_audio(rows: Tensor) -> Tensor:
    """Audio rows [2*A, channels] to latents [2, channels, A]: the mono audio VAE takes two batch items."""
    return rows.reshape(STEREO, -1, rows.shape[1]).transpose(1, 2).contiguous()


def _axis(size: int, patch: int, root_area: float) -> np.ndarray:
    # numpy's linspace, as in the reference: torch's rounds differently.
    ratio = size / root_area
    left = (1.0 - ratio) / 2.0
    return np.linspace(left, left + ratio, size // patch, endpoint=False) * _SPATIAL_SPAN


def _frame_grid(height: int, width: int, patch: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """(h, w) of each row of a latent frame, [rf, 2], and the width axis; normalised by area."""
    root_area = math.sqrt(height * width)
    h_axis = torch.from_numpy(_axis(height, patch[1], root_area))
    w_axis = torch.from_numpy(_axis(width, patch[2], root_area))
    grids = torch.meshgrid(h_axis, w_axis, indexing="ij")
    return torch.stack([grid.reshape(-1) for grid in grids], dim=-1), w_axis


def _spans(frames: int) -> np.ndarray:
    """Clock units each latent frame spans: 5/3 of a unit for each of its 1, 4, 4, 4, 4 frames."""
    pattern = np.array(_FRAMES_PER_LATENT, dtype=np.float64)
    return _CLOCK_PER_FRAME * pattern[np.arange(frames) % len(pattern)]


def _frame_times(frames: int, origin: int) -> Tensor:
    elapsed = torch.from_numpy(_spans(frames)[:-1]).cumsum(0)
    return float(origin) + torch.cat([torch.zeros(1, dtype=torch.float64), elapsed])


def _anchor_time(anchor: str, frames: int, origin: int) -> float:
    if anchor == "first":
        return float(origin)
    if anchor == "last":
        # numpy's pairwise sum, not the running one of `_frame_times`: the last bit differs from 16 frames on.
        return float(origin) + float(_spans(frames).sum()) - _CLOCK_PER_FRAME
    raise ValueError(f"a keyframe is 'first' or 'last', not {anchor!r}")


def _audio_grid(latents: int, origin: int, width_axis: Tensor) -> Tensor:
    """[2*A, 3]: left and right channel at the two ends of the width axis, no height."""
    grid = torch.zeros(STEREO, latents, 3, dtype=torch.float64)
    grid[:, :, 0] = float(origin) + torch.arange(latents, dtype=torch.float64)
    grid[0, :, 2] = width_axis[0]
    grid[1, :, 2] = width_axis[-1]
    return grid.reshape(-1, 3)


def _check_shape(latent_shape: tuple[int, int, int], patch: tuple[int, int, int]) -> None:
    if patch[0] != 1:
        raise ModelError(f"This model's patch spans {patch[0]} latent frames; only one is supported.")
    _check_whole(latent_shape, patch)


def _check_whole(latent_shape: tuple[int, int, int], patch: tuple[int, int, int]) -> None:
    if any(size < 1 or size % part for size, part in zip(latent_shape, patch, strict=True)):
        raise ModelError(f"Latents of shape {tuple(latent_shape)} are not whole patches of {tuple(patch)}.")
