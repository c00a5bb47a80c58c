"""Cut the twelve sprites out of Noto Color Emoji, once; the PNGs are committed so that the recipe needs no
font.

Usage: python -m recipe.make_sprites /path/to/NotoColorEmoji.ttf
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

SPRITE_FOLDER = Path(__file__).with_name("sprites")
BITMAP_SIZE = 109  # the only size the bitmap font holds
SPRITE_SIZE = 128
MARGIN = 2

EMOJI = {
    "dog": "🐕", "cat": "🐈", "fox": "🦊", "penguin": "🐧", "car": "🚗", "rocket": "🚀",
    "boat": "⛵", "tree": "🌳", "balloon": "🎈", "butterfly": "🦋", "fish": "🐠", "ufo": "🛸",
}  # fmt: skip
STARS_AROUND = {"rocket", "ufo"}


def largest_part(image: Image.Image) -> Image.Image:
    """Keep the pixels connected to the centre of mass; drops the small stars some emoji carry."""
    alpha = image.getchannel("A")
    seen = Image.new("L", image.size, 0)
    solid = alpha.point(lambda value: 255 if value > 8 else 0)
    work = solid.copy()
    box = solid.getbbox()
    centre = ((box[0] + box[2]) // 2, (box[1] + box[3]) // 2)
    ImageDraw.floodfill(work, centre, 128)
    seen = work.point(lambda value: 255 if value == 128 else 0)
    cleaned = image.copy()
    cleaned.putalpha(Image.composite(alpha, Image.new("L", image.size, 0), seen))
    return cleaned


def draw_sprite(symbol: str, font: ImageFont.FreeTypeFont, drop_small_parts: bool) -> Image.Image:
    """One emoji trimmed and fitted into a transparent square, standing on its lower edge."""
    canvas = Image.new("RGBA", (160, 160), (0, 0, 0, 0))
    ImageDraw.Draw(canvas).text((8, 8), symbol, font=font, embedded_color=True)
    if drop_small_parts:
        canvas = largest_part(canvas)
    part = canvas.crop(canvas.getbbox())
    room = SPRITE_SIZE - 2 * MARGIN
    scale = room / max(part.size)
    part = part.resize((round(part.width * scale), round(part.height * scale)), Image.LANCZOS)
    sprite = Image.new("RGBA", (SPRITE_SIZE, SPRITE_SIZE), (0, 0, 0, 0))
    sprite.paste(part, ((SPRITE_SIZE - part.width) // 2, SPRITE_SIZE - MARGIN - part.height))
    return sprite


def main() -> None:
    font = ImageFont.truetype(sys.argv[1], BITMAP_SIZE)
    SPRITE_FOLDER.mkdir(exist_ok=True)
    for name, symbol in EMOJI.items():
        draw_sprite(symbol, font, name in STARS_AROUND).save(SPRITE_FOLDER / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
