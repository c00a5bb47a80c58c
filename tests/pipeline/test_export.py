"""What is written: PNG with its story inside, a clip that plays everywhere, nothing half written."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

from pipeline import FirstlookError, export, files

SETTINGS = {"prompt": "一只狗 = \"quoted\"\nsecond line", "seed": str(2**64 - 1)}


def coloured(count: int = 4, height: int = 48, width: int = 64) -> np.ndarray:
    """Flat colours that a wrong matrix or a missing tag would move."""
    colours = [(200, 30, 30), (30, 180, 60), (128, 128, 128), (240, 220, 40)]
    frames = np.empty((count, height, width, 3), dtype=np.uint8)
    for index in range(count):
        frames[index] = colours[index % len(colours)]
    return frames


def write_clip(path, frames, fps=12):
    size = frames.shape[2], frames.shape[1]
    export.write_mp4(path, iter(frames), size, fps, SETTINGS["prompt"], SETTINGS)


def describe_clip(path) -> str:
    run = [imageio_ffmpeg.get_ffmpeg_exe(), "-hide_banner", "-i", str(path)]
    return subprocess.run(run, capture_output=True, text=True, check=False).stderr


def decode_clip(path, width, height) -> np.ndarray:
    """Frames as a player that trusts the tags would show them."""
    output = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    run = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(path), *output]
    raw = subprocess.run(run, capture_output=True, check=True).stdout
    return np.frombuffer(raw, dtype=np.uint8).reshape(-1, height, width, 3)


def test_a_png_gives_back_its_pixels_and_its_story(tmp_path):
    frame = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    metadata = export.png_metadata(SETTINGS["prompt"], 2**64 - 1, SETTINGS, "Firstlook 0")
    export.write_png(tmp_path / "0001.png", frame, metadata)
    assert np.array_equal(export.read_png(tmp_path / "0001.png"), frame)
    with Image.open(tmp_path / "0001.png") as picture:
        picture.load()
        assert picture.text["Description"] == SETTINGS["prompt"]
        assert picture.text["seed"] == "18446744073709551615"
        assert json.loads(picture.text["firstlook"]) == SETTINGS
    assert (tmp_path / "0001.png").read_bytes().count(b"iTXt") == 4


def test_the_same_frame_gives_the_same_png_bytes(tmp_path):
    frame = coloured(1)[0]
    for name in ("a.png", "b.png"):
        export.write_png(tmp_path / name, frame, {"seed": "1"})
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_a_clip_is_h264_in_yuv420p_with_tags_and_faststart(tmp_path):
    path = tmp_path / "clip.mp4"
    write_clip(path, coloured(), fps=12)
    text = describe_clip(path)
    assert "h264" in text and "64x48" in text and "12 fps" in text
    assert re.search(r"yuv420p\(tv, bt709", text)
    data = path.read_bytes()
    assert 0 < data.index(b"moov") < data.index(b"mdat")


def test_a_clip_tells_the_prompt_and_every_setting(tmp_path):
    path = tmp_path / "clip.mp4"
    write_clip(path, coloured())
    run = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(path), "-f", "ffmetadata", "-"]
    text = subprocess.run(run, capture_output=True, check=True).stdout.decode()
    plain = re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
    assert "title=" + SETTINGS["prompt"] in plain
    assert json.loads(re.search(r"comment=(.*)", plain)[1]) == SETTINGS


def test_colours_survive_the_clip(tmp_path):
    frames = coloured()
    write_clip(tmp_path / "clip.mp4", frames)
    shown = decode_clip(tmp_path / "clip.mp4", 64, 48)
    assert shown.shape == frames.shape
    assert np.abs(shown.astype(int) - frames.astype(int)).max() <= 4


def test_odd_sides_are_padded_to_even_never_scaled(tmp_path):
    frames = coloured(height=47, width=63)
    write_clip(tmp_path / "clip.mp4", frames)
    shown = decode_clip(tmp_path / "clip.mp4", 64, 48)
    assert np.abs(shown[:, :40, :56].astype(int) - frames[:, :40, :56].astype(int)).max() <= 6


def test_ffmpegs_failure_is_one_sentence_and_leaves_nothing(tmp_path):
    with pytest.raises(FirstlookError, match="PNG frames are complete"):
        export.write_mp4(tmp_path / "clip.mp4", iter(coloured()), (0, 0), 12, "x", {})
    assert list(tmp_path.iterdir()) == []


def test_a_zip_holds_the_same_files_uncompressed(tmp_path):
    paths = [tmp_path / f"{index:04d}.png" for index in (1, 2)]
    for path, frame in zip(paths, coloured(2), strict=True):
        export.write_png(path, frame, {})
    export.zip_frames(paths, tmp_path / "frames.zip")
    with zipfile.ZipFile(tmp_path / "frames.zip") as archive:
        assert archive.namelist() == ["0001.png", "0002.png"]
        assert archive.read("0001.png") == paths[0].read_bytes()
        assert all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())


def test_a_jpeg_is_for_looking(tmp_path):
    (tmp_path / "live.jpg").write_bytes(export.jpeg(coloured(1)[0]))
    with Image.open(tmp_path / "live.jpg") as picture:
        assert (picture.format, picture.size) == ("JPEG", (64, 48))


def test_an_interrupted_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "job.json"
    files.write_json(path, {"step": 1})
    with pytest.raises(RuntimeError), files.replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert json.loads(path.read_text()) == {"step": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_too_little_space_is_told_before_anything_is_written(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    files.require_space(tmp_path / "not" / "there" / "yet", 1)
    with pytest.raises(FirstlookError, match="MiB left"):
        files.require_space(tmp_path, free * 2)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_recognised():
    with pytest.raises(OSError) as caught, Path("/dev/full").open("wb", buffering=0) as full:
        full.write(b"x")
    assert files.is_full_disk(caught.value)
