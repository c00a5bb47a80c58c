"""The toy world: 12 sprites, 7 settings, 6 motions on a 16-pixel grid, at two sizes that show the same
picture.

Everything the prompt does not say is fixed, except the start place, which the seed chooses. At scale 1 a
clip is
192 x 112 and moves 4 px a frame (16 px, one patch, a latent); scale 2 is exactly twice that.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SPRITE_FOLDER = Path(__file__).with_name("sprites")
WIDTH, HEIGHT, FRAMES = 192, 112, 22
PATCH = 16
SPRITE = 64
STEP = 4
STREAK_PERIOD = 16

NOUNS = (
    "dog", "cat", "fox", "penguin", "car", "rocket", "boat", "tree", "balloon", "butterfly", "fish", "ufo",
)  # fmt: skip
SETTINGS = ("field", "night", "beach", "desert", "snow", "space", "rain")
MOTIONS = ("right", "left", "up", "down", "jump", "still")

# Pairs that no training clip shows, kept to measure composition.
HELD_OUT_SETTINGS = frozenset({("fish", "desert"), ("tree", "space"), ("ufo", "beach"), ("cat", "snow")})
HELD_OUT_MOTIONS = frozenset({("car", "up"), ("boat", "jump"), ("penguin", "down")})

FACES_LEFT = frozenset({"cat", "penguin", "car", "fish"})
PLACES = 3
# The one start place of the last training stage: left to choose among three, the model showed two at once.
FINAL_PLACE = {"right": 0, "left": 0, "up": 1, "down": 1, "jump": 1, "still": 1}

RGB = tuple[int, int, int]


@dataclass(frozen=True)
class Scene:
    """What one clip shows; `place` (0..2) is what the prompt leaves open."""

    noun: str
    setting: str
    motion: str
    place: int

    @property
    def held_out(self) -> bool:
        return (self.noun, self.setting) in HELD_OUT_SETTINGS or (self.noun, self.motion) in HELD_OUT_MOTIONS


def all_scenes() -> list[Scene]:
    """Every scene of the world in a fixed order, held-out ones included."""
    return [Scene(n, s, m, p) for n in NOUNS for s in SETTINGS for m in MOTIONS for p in range(PLACES)]


def training_scenes() -> list[Scene]:
    """The scenes that training may show."""
    return [scene for scene in all_scenes() if not scene.held_out]


# (height of the band's upper edge in patch rows, colour), sky first; every edge lies on a patch row.
BANDS: dict[str, tuple[tuple[int, RGB], ...]] = {
    "field": ((0, (112, 190, 250)), (5, (104, 186, 72)), (6, (86, 166, 60))),
    "night": ((0, (16, 20, 66)), (5, (26, 56, 50)), (6, (20, 44, 40))),
    "beach": ((0, (150, 216, 250)), (3, (32, 112, 196)), (5, (246, 222, 164))),
    "desert": ((0, (252, 218, 150)), (4, (232, 160, 78)), (6, (214, 138, 60))),
    "snow": ((0, (178, 196, 220)), (4, (214, 226, 240)), (5, (250, 252, 255))),
    "space": ((0, (10, 8, 26)),),
    "rain": ((0, (104, 118, 138)), (5, (70, 84, 92)), (6, (58, 72, 80))),
}
# (centre x, centre y, radius) in pixels at scale 1: inside whole patches, one fixed place per setting.
DISCS: dict[str, tuple[tuple[int, int, int, RGB], ...]] = {
    "field": ((160, 16, 13, (255, 226, 92)),),
    "night": ((32, 16, 13, (244, 240, 206)),),
    "beach": ((160, 16, 13, (255, 236, 130)),),
    "desert": ((32, 16, 13, (255, 246, 206)),),
    "space": ((160, 24, 20, (206, 122, 78)),),
}
STARRY = {"night": 5, "space": 7}
STREAK: RGB = (158, 174, 194)


def draw_clouds(draw: ImageDraw.ImageDraw, unit: int) -> None:
    """Two fixed white clouds for the snowy sky, in units of a quarter pixel of scale 1."""
    for left, top in ((16, 8), (128, 12)):
        for dx, dy, width, height in ((0, 8, 40, 12), (6, 2, 16, 16), (18, 0, 16, 18)):
            box = [
                (left + dx) * unit,
                (top + dy) * unit,
                (left + dx + width) * unit,
                (top + dy + height) * unit,
            ]
            draw.ellipse(box, fill=(226, 234, 244))


@cache
def still_background(setting: str, scale: int) -> np.ndarray:
    """The setting without rain, uint8 (H, W, 3), antialiased by drawing four times larger."""
    over = 4
    unit = scale * over
    image = Image.new("RGB", (WIDTH * unit, HEIGHT * unit))
    draw = ImageDraw.Draw(image)
    for row, colour in BANDS[setting]:
        draw.rectangle([0, row * PATCH * unit, WIDTH * unit, HEIGHT * unit], fill=colour)
    if setting in STARRY:
        rng = random.Random(17)
        for column in range(WIDTH // PATCH):
            for row in range(STARRY[setting]):
                if rng.random() < 0.4:
                    x = (column * PATCH + rng.randint(4, 12)) * unit
                    y = (row * PATCH + rng.randint(4, 12)) * unit
                    radius = rng.choice((0.8, 1.1)) * unit
                    draw.ellipse([x - radius, y - radius, x + radius, y + radius], fill=(250, 250, 235))
    if setting == "snow":
        draw_clouds(draw, unit)
    for x, y, radius, colour in DISCS.get(setting, ()):
        box = [(x - radius) * unit, (y - radius) * unit, (x + radius) * unit, (y + radius) * unit]
        draw.ellipse(box, fill=colour)
    return np.asarray(image.resize((WIDTH * scale, HEIGHT * scale), Image.BOX))


@cache
def streak_tile(scale: int) -> np.ndarray:
    """Coverage of two rain streaks in one periodic tile, float32 (16*scale, 16*scale) in 0..1."""
    over = 4
    unit = scale * over
    size = STREAK_PERIOD * unit
    image = Image.new("L", (size, size), 0)
    draw = ImageDraw.Draw(image)
    for x, y in ((5, 1), (13, 9)):
        for wrap_x in (-size, 0, size):
            for wrap_y in (-size, 0, size):
                start = (x * unit + wrap_x, y * unit + wrap_y)
                end = (start[0] - 2 * unit, start[1] + 6 * unit)
                draw.line([start, end], fill=255, width=round(1.1 * unit))
    return np.asarray(image.resize((STREAK_PERIOD * scale,) * 2, Image.BOX), dtype=np.float32) / 255.0


@lru_cache(maxsize=64)
def background(setting: str, scale: int, frame: int) -> np.ndarray:
    """Background of one frame, uint8 (H, W, 3)."""
    picture = still_background(setting, scale)
    if setting != "rain":
        return picture
    shift = frame * STEP * scale % (STREAK_PERIOD * scale)
    tile = np.roll(streak_tile(scale), shift, axis=0)
    cover = np.tile(tile, (HEIGHT // STREAK_PERIOD, WIDTH // STREAK_PERIOD))[..., None]
    return (picture + (np.array(STREAK, np.float32) - picture) * cover * 0.8 + 0.5).astype(np.uint8)


@cache
def sprite(noun: str, scale: int, mirrored: bool) -> tuple[np.ndarray, np.ndarray]:
    """Premultiplied colour float32 (64*scale, 64*scale, 3) in 0..255 and alpha (64*scale, 64*scale, 1) in
    0..1.
    """
    image = Image.open(SPRITE_FOLDER / f"{noun}.png").convert("RGBA")
    pixels = np.asarray(image, dtype=np.float32)
    alpha = pixels[..., 3:] / 255.0
    premultiplied = np.concatenate([pixels[..., :3] * alpha, alpha], axis=-1)
    factor = image.width // (SPRITE * scale)
    size = SPRITE * scale
    premultiplied = premultiplied.reshape(size, factor, size, factor, 4).mean(axis=(1, 3))
    if mirrored:
        premultiplied = premultiplied[:, ::-1]
    return np.ascontiguousarray(premultiplied[..., :3]), np.ascontiguousarray(premultiplied[..., 3:])


def is_mirrored(scene: Scene) -> bool:
    """Every sprite looks where it goes; without a sideways motion it looks right."""
    return (scene.noun in FACES_LEFT) != (scene.motion == "left")


def corner(scene: Scene, frame: int) -> tuple[int, int]:
    """Left upper corner (x, y) of the sprite in one frame, in pixels at scale 1."""
    middle = 32 + 32 * scene.place
    travelled = STEP * frame
    if scene.motion == "right":
        return PATCH * scene.place + travelled, 32
    if scene.motion == "left":
        return WIDTH - SPRITE - PATCH * scene.place - travelled, 32
    if scene.motion == "up":
        return middle, 48 - travelled
    if scene.motion == "down":
        return middle, -32 + travelled
    if scene.motion == "jump":
        phase = travelled % 64
        return middle, 32 - min(phase, 64 - phase)
    return middle, 32


def render_frame(scene: Scene, scale: int, frame: int) -> np.ndarray:
    """One frame, uint8 (112*scale, 192*scale, 3)."""
    picture = background(scene.setting, scale, frame).copy()
    colour, alpha = sprite(scene.noun, scale, is_mirrored(scene))
    x, y = (value * scale for value in corner(scene, frame))
    size = SPRITE * scale
    x0, x1 = max(x, 0), min(x + size, WIDTH * scale)
    y0, y1 = max(y, 0), min(y + size, HEIGHT * scale)
    if x0 < x1 and y0 < y1:
        inside = (slice(y0 - y, y1 - y), slice(x0 - x, x1 - x))
        under = picture[y0:y1, x0:x1]
        picture[y0:y1, x0:x1] = (under * (1 - alpha[inside]) + colour[inside] + 0.5).astype(np.uint8)
    return picture


def render_clip(scene: Scene, scale: int = 1, frames: int = FRAMES) -> np.ndarray:
    """One clip, uint8 (frames, 112*scale, 192*scale, 3)."""
    return np.stack([render_frame(scene, scale, frame) for frame in range(frames)])


def sprite_cover(scene: Scene, scale: int, frame: int) -> np.ndarray:
    """Alpha of the sprite on the whole canvas, float32 (112*scale, 192*scale)."""
    cover = np.zeros((HEIGHT * scale, WIDTH * scale), np.float32)
    _, alpha = sprite(scene.noun, scale, is_mirrored(scene))
    x, y = (value * scale for value in corner(scene, frame))
    size = SPRITE * scale
    x0, x1 = max(x, 0), min(x + size, WIDTH * scale)
    y0, y1 = max(y, 0), min(y + size, HEIGHT * scale)
    if x0 < x1 and y0 < y1:
        cover[y0:y1, x0:x1] = alpha[y0 - y : y1 - y, x0 - x : x1 - x, 0]
    return cover
