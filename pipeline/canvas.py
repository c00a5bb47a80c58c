"""Which shape can the model make for the one that was asked for?

The only owner of size rules. A wish of `width` x `height` x `frames` is validated first; then the smallest
shape the model can generate that covers it is chosen; both are shown in `Canvas.note`. The generated picture
is cropped to its centre and the first frames are kept, so a wish is always met exactly.

What a model can generate follows from its video VAE (spatial and temporal compression, and the chunks its
decoder works in) and from the patch of its transformer. For MiniMax-H3: sides in multiples of 32, and 17 n +
5 frames.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.errors import RequestError

MIN_SIDE = 32
"""Smallest side of a wish, in pixels."""
MAX_SIDE = 2048
"""Largest side of a wish, in pixels."""
MAX_FRAMES = 345
"""Longest wish, in frames: the model's own limit, 15 seconds at 24 a second, rounded down to 17 n + 5."""
MODEL_FPS = 24
"""Frames a second of the model's own clock; audio is generated along it whatever rate a clip is played at."""
AUDIO_LATENTS_PER_SECOND = 40


@dataclass(frozen=True)
class ModelGeometry:
    """The numbers that decide which shapes a model can make. The defaults are MiniMax-H3's.

    `spatial_ratio`, `temporal_ratio`: pixels (frames) for one latent. `patch`: latents in one row, as (t, h,
    w). `clip_length`: frames the VAE encodes at once. `token_drop`: latents dropped at the end of an encoded
    video.
    """

    spatial_ratio: int = 16
    temporal_ratio: int = 4
    patch: tuple[int, int, int] = (1, 2, 2)
    clip_length: int = 17
    token_drop: int = 3
    latent_channels: int = 24
    audio_channels: int = 32
    has_audio: bool = True

    @property
    def multiple(self) -> int:
        """Width and height of what is generated are multiples of this many pixels."""
        return self.spatial_ratio * math.lcm(self.patch[1], self.patch[2])

    @property
    def chunk_latents(self) -> int:
        """Latents the decoder moves on by: `ceil(clip_length / temporal_ratio)`, 5 for H3."""
        return -(-self.clip_length // self.temporal_ratio)

    @property
    def overlap_latents(self) -> int:
        """Latents each decoded chunk shares with the next one, 2 for H3."""
        return -self.token_drop % self.chunk_latents

    @property
    def overlap_frames(self) -> int:
        """Frames two decoded chunks share: `clip_length * n` of them and these make a clip. 5 for H3."""
        return max(self.overlap_latents * self.temporal_ratio - (-self.clip_length % self.temporal_ratio), 0)

    def chunks(self, frames: int) -> int:
        """The fewest decoder chunks that cover `frames`; at least one, since the decoder makes nothing of
        less."""
        count = max(1, -(-(frames - self.overlap_frames) // self.clip_length))
        while self.latent_frames(count) % self.patch[0]:
            count += 1
        return count

    def frames(self, chunks: int) -> int:
        """Frames that `chunks` decoder chunks make: 17 n + 5 for H3."""
        return self.clip_length * chunks + self.overlap_frames

    def latent_frames(self, chunks: int) -> int:
        """Latent frames of `chunks` decoder chunks: 5 n + 2 for H3."""
        return self.chunk_latents * chunks + self.overlap_latents


@dataclass(frozen=True)
class Canvas:
    """A wish and the shape that is generated for it. Pixels and frames; `crop` is (left, top, right, bottom).

    `rows` counts the video rows the transformer sees; `audio_latents` counts latents of one of the two
    channels. `note` is empty, or one sentence that names both the wish and what is made.
    """

    width: int
    height: int
    frames: int
    gen_width: int
    gen_height: int
    gen_frames: int
    latent_frames: int
    latent_height: int
    latent_width: int
    crop: tuple[int, int, int, int]
    audio_latents: int
    rows: int
    snapped: bool
    note: str

    @property
    def latent_shape(self) -> tuple[int, int, int]:
        """(frames, height, width) in latents."""
        return self.latent_frames, self.latent_height, self.latent_width


def plan(width: int, height: int, frames: int, geometry: ModelGeometry) -> Canvas:
    """Validate a wish and find the smallest shape of the model that covers it.

    Raises RequestError naming the field that is not an integer within `MIN_SIDE..MAX_SIDE` pixels or
    `1..MAX_FRAMES` frames.
    """
    _check("width", "width", width, MIN_SIDE, MAX_SIDE, "pixels")
    _check("height", "height", height, MIN_SIDE, MAX_SIDE, "pixels")
    _check("frames", "number of frames", frames, 1, MAX_FRAMES, "frames")
    gen_width = _round_up(width, geometry.multiple)
    gen_height = _round_up(height, geometry.multiple)
    chunks = geometry.chunks(frames)
    gen_frames = geometry.frames(chunks)
    latents = (
        geometry.latent_frames(chunks),
        gen_height // geometry.spatial_ratio,
        gen_width // geometry.spatial_ratio,
    )
    left, top = (gen_width - width) // 2, (gen_height - height) // 2
    return Canvas(
        width=width,
        height=height,
        frames=frames,
        gen_width=gen_width,
        gen_height=gen_height,
        gen_frames=gen_frames,
        latent_frames=latents[0],
        latent_height=latents[1],
        latent_width=latents[2],
        crop=(left, top, left + width, top + height),
        audio_latents=audio_latents(gen_frames) if geometry.has_audio else 0,
        rows=math.prod(latents) // math.prod(geometry.patch),
        snapped=(gen_width, gen_height, gen_frames) != (width, height, frames),
        note=_note((width, height, frames), (gen_width, gen_height, gen_frames)),
    )


def audio_latents(frames: int) -> int:
    """Audio latents of one channel that cover `frames` at 24 frames a second: 40 a second, rounded."""
    return round(frames / MODEL_FPS * AUDIO_LATENTS_PER_SECOND)


def spread(count: int, wanted: int) -> list[int]:
    """Indices of `wanted` frames evenly spaced over `count`, first and last included.

    One frame is the middle one; more than there are gives each once.
    """
    if count < 1 or wanted < 1:
        raise ValueError(f"spread needs positive numbers, got {wanted} of {count} frames")
    if wanted >= count:
        return list(range(count))
    if wanted == 1:
        return [count // 2]
    return [(2 * i * (count - 1) + wanted - 1) // (2 * (wanted - 1)) for i in range(wanted)]


def _check(field: str, name: str, value: int, low: int, high: int, unit: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(field, f"The {name} must be a whole number of {unit}, not {value!r}.")
    if not low <= value <= high:
        raise RequestError(field, f"The {name} must be between {low} and {high} {unit}, not {value}.")


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _note(wish: tuple[int, int, int], made: tuple[int, int, int]) -> str:
    size, length = f"{made[0]}×{made[1]}", f"{made[2]} frames"
    if wish == made:
        return ""
    kept = "frame is" if wish[2] == 1 else f"{wish[2]} frames are"
    if wish[2] == made[2]:
        return f"Made at {size} and cropped to {wish[0]}×{wish[1]}."
    if wish[:2] == made[:2]:
        return f"Made with {length}, of which the first {kept} kept."
    return f"Made at {size} with {length}, then cropped to {wish[0]}×{wish[1]}, and the first {kept} kept."
