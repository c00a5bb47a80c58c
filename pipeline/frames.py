"""Frames between shapes: cropping to the wish, showing a preview small, enlarging it for its render.

Frames are numpy arrays, uint8 [F, H, W, 3] in RGB.
"""

from __future__ import annotations

import math

import numpy as np
from PIL import Image

from pipeline.canvas import Canvas, spread


def crop(frames: np.ndarray, canvas: Canvas) -> np.ndarray:
    """The wished part of what was generated: the first `canvas.frames` frames, cut to `canvas.crop`."""
    left, top, right, bottom = canvas.crop
    return frames[: canvas.frames, top:bottom, left:right]


def cover(frames: np.ndarray, width: int, height: int) -> np.ndarray:
    """Resize to fill `width` x `height` exactly, cutting off what stands over at both sides alike."""
    count, own_height, own_width, _ = frames.shape
    if (own_width, own_height) == (width, height):
        return frames
    scale = max(width / own_width, height / own_height)
    cut_width, cut_height = width / scale, height / scale
    left, top = (own_width - cut_width) / 2, (own_height - cut_height) / 2
    box = (left, top, min(left + cut_width, own_width), min(top + cut_height, own_height))
    # Pillow widens its filters when reducing, so both directions are free of aliasing.
    kernel = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.BICUBIC
    resized = np.empty((count, height, width, 3), dtype=np.uint8)
    for index, frame in enumerate(frames):
        picture = Image.fromarray(np.ascontiguousarray(frame))
        resized[index] = np.asarray(picture.resize((width, height), kernel, box=box))
    return resized


def show(frames: np.ndarray, canvas: Canvas, width: int, height: int, count: int) -> np.ndarray:
    """A preview as it is shown: `count` frames of the wished part, evenly spaced, at `width` x `height`."""
    wished = crop(frames, canvas)
    indices = spread(len(wished), count)
    # A clip shorter than what is shown repeats frames rather than show fewer.
    chosen = [indices[min(i, len(indices) - 1)] for i in range(count)]
    return cover(wished[chosen], width, height)


def retime(frames: np.ndarray, wished: int, generated: int) -> np.ndarray:
    """Stretch a clip over `wished` frames, blending neighbours, and hold its end up to `generated` frames."""
    last = len(frames) - 1
    pace = last / (wished - 1) if wished > 1 else 0.0
    places = [min(index * pace, float(last)) for index in range(generated)]
    return np.stack([_between(frames, place) for place in places])


def enlarge(frames: np.ndarray, preview: Canvas, render: Canvas) -> np.ndarray:
    """A preview's generated frames in the shape that is generated for its render, [F, H, W, 3] uint8."""
    timed = retime(frames[: preview.frames], render.frames, render.gen_frames)
    return cover(timed, render.gen_width, render.gen_height)


def _between(frames: np.ndarray, place: float) -> np.ndarray:
    before = math.floor(place)
    share = place - before
    if share == 0.0:
        return frames[before]
    blend = (1.0 - share) * frames[before].astype(np.float64) + share * frames[before + 1]
    return np.rint(blend).astype(np.uint8)
