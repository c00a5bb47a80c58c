"""Frames between shapes: cropping to the wish, showing a preview small, enlarging it for its render.

Frames are numpy arrays, uint8 [F, H, W, 3] in RGB.
"""

from __future__ import annotations

import numpy as np

from pipeline.canvas import Canvas, spread
from pipeline.vae import fit


def crop(frames: np.ndarray, canvas: Canvas) -> np.ndarray:
    """The wished part of what was generated: the first `canvas.frames` frames, cut to `canvas.crop`."""
    return crop_sides(frames[: canvas.frames], canvas)


def crop_sides(frames: np.ndarray, canvas: Canvas) -> np.ndarray:
    """Cut frames of the generated size to `canvas.crop`, whichever and however many they are."""
    left, top, right, bottom = canvas.crop
    return frames[:, top:bottom, left:right]


def show(frames: np.ndarray, canvas: Canvas, width: int, height: int, count: int) -> np.ndarray:
    """A preview as it is shown: `count` frames of the wished part, evenly spaced, at `width` x `height`."""
    wished = crop(frames, canvas)
    return fit(wished[spread(len(wished), count)], width, height, count)


def enlarge(frames: np.ndarray, render: Canvas) -> np.ndarray:
    """A preview's frames in the shape that is generated for its render.

    They are stretched over the render's wished frames, so that both show the same motion; frames that are
    generated beyond the wish, and cut off later, hold the last one.
    """
    wished = fit(frames, render.gen_width, render.gen_height, render.frames)
    beyond = render.gen_frames - render.frames
    return np.concatenate([wished, np.repeat(wished[-1:], beyond, axis=0)])
