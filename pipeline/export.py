"""Frames to files: PNG sequence, H.264 clip, zip, and JPEGs for the live view.

PNG is the master, with the whole request in its iTXt chunks; nothing in it depends on the time, so the same
frames give the same bytes. The clip is H.264 in yuv420p with even sides, playable everywhere.
"""

from __future__ import annotations

import io
import json
import logging
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin

from pipeline.errors import FirstlookError
from pipeline.files import replacing

log = logging.getLogger(__name__)

JPEG_QUALITY = 85
CRF = 16
"""Visually lossless; crf 0 gives black pictures in some players."""
COLOUR = (
    "scale=out_color_matrix=bt709:out_range=tv:flags=accurate_rnd+full_chroma_int,"
    "setparams=range=tv:colorspace=bt709:color_primaries=bt709:color_trc=bt709"
)
"""Colour tags given as options of the output do not reach the stream; those of setparams do."""
EVEN = "pad=ceil(iw/2)*2:ceil(ih/2)*2,"


def png_metadata(prompt: str, seed: int, settings: Mapping[str, Any], software: str) -> dict[str, str]:
    """The texts of one picture: PNG's own keywords for reading, and one JSON object for programs."""
    return {
        "Description": prompt,
        "Software": software,
        "seed": str(seed),
        "firstlook": json.dumps(settings, ensure_ascii=False, sort_keys=True),
    }


def write_png(path: Path, frame: np.ndarray, metadata: Mapping[str, str]) -> None:
    """Write one frame, uint8 [H, W, 3], with `metadata` as iTXt chunks (UTF-8)."""
    texts = PngImagePlugin.PngInfo()
    for keyword, text in metadata.items():
        texts.add_itxt(keyword, text)
    with replacing(path) as temporary:
        Image.fromarray(np.ascontiguousarray(frame)).save(temporary, format="PNG", pnginfo=texts)


def jpeg(frame: np.ndarray) -> bytes:
    """One frame, uint8 [H, W, 3], as the bytes of a JPEG for looking at."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(frame)).save(buffer, format="JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()


def read_png(path: Path) -> np.ndarray:
    """One frame back from disk, uint8 [H, W, 3]."""
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def write_mp4(
    path: Path,
    frames: Iterable[np.ndarray],
    size: tuple[int, int],
    fps: int,
    title: str,
    comment: Mapping[str, Any],
) -> None:
    """Write frames, uint8 [H, W, 3] each, as an H.264 clip; odd sides are padded by one pixel to even ones.

    `size` is (width, height). `comment` is stored as JSON. Raises `FirstlookError` when there is no ffmpeg or
    it fails.
    """
    width, height = size
    filters = (EVEN if width % 2 or height % 2 else "") + COLOUR
    with replacing(path) as temporary:
        command = [
            _ffmpeg(), "-y", "-nostdin", "-loglevel", "error",
            "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "pipe:0",
            "-an", "-vf", filters, "-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", str(CRF),
            "-movflags", "+faststart+use_metadata_tags",
            "-metadata", f"title={title}",
            "-metadata", "comment=" + json.dumps(comment, ensure_ascii=False, sort_keys=True),
            "-f", "mp4", str(temporary),
        ]  # fmt: skip
        _feed(command, frames)


def zip_frames(paths: Iterable[Path], target: Path) -> None:
    """Put files into a zip without compressing them again: PNG is deflated already."""
    with replacing(target) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        for path in paths:
            archive.write(path, path.name)


def _ffmpeg() -> str:
    import imageio_ffmpeg

    try:
        return imageio_ffmpeg.get_ffmpeg_exe()
    except RuntimeError as error:
        raise FirstlookError("No ffmpeg was found for the mp4: the PNG frames are complete.") from error


def _feed(command: list[str], frames: Iterable[np.ndarray]) -> None:
    """Run ffmpeg and hand it the frames one by one, so that a long clip is never in memory twice."""
    with tempfile.TemporaryFile() as complaints:
        # Its own session: a Ctrl-C in the terminal is for us to handle, not for ffmpeg.
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=complaints, stderr=complaints, start_new_session=True
        ) as run:
            try:
                for frame in frames:
                    run.stdin.write(np.ascontiguousarray(frame).tobytes())
                run.stdin.close()
            except BrokenPipeError:
                log.debug("ffmpeg stopped reading early")
            code = run.wait()
        complaints.seek(0)
        text = complaints.read().decode("utf-8", "replace").strip()
    if code != 0:
        reason = text.splitlines()[-1] if text else f"exit code {code}"
        raise FirstlookError(f"ffmpeg could not write the mp4 ({reason}): the PNG frames are complete.")
