"""Contact sheets: one row a clip, its caption and six frames."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

SHOWN = (0, 4, 8, 12, 16, 21)
LABEL_WIDTH = 150


def contact_sheet(rows: list[tuple[str, np.ndarray]], path: Path, frame_width: int = 192) -> None:
    """Write the sheet; rows are (label, frames uint8 (22, H, W, 3))."""
    height = round(rows[0][1].shape[1] * frame_width / rows[0][1].shape[2])
    sheet = Image.new(
        "RGB", (LABEL_WIDTH + (frame_width + 2) * len(SHOWN), (height + 2) * len(rows)), "white"
    )
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=11)
    for index, (label, frames) in enumerate(rows):
        top = index * (height + 2)
        draw.multiline_text((3, top + 3), "\n".join(textwrap.wrap(label, 24)), fill="black", font=font)
        for column, shown in enumerate(SHOWN):
            picture = Image.fromarray(frames[shown])
            if picture.width != frame_width:
                picture = picture.resize((frame_width, height), Image.BICUBIC)
            sheet.paste(picture, (LABEL_WIDTH + column * (frame_width + 2), top))
    part = path.with_name(f"{path.stem}.part{path.suffix}")
    sheet.save(part, quality=88)
    part.replace(path)
