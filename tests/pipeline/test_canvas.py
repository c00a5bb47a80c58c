"""Size rules: the covering table of MiniMax-H3, frame counts of diffusers, and other geometries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.canvas import MAX_FRAMES, ModelGeometry, audio_latents, plan, spread
from pipeline.errors import RequestError

H3 = ModelGeometry()
FIREFLY = ModelGeometry(patch=(1, 1, 1), latent_channels=64, has_audio=False)
RECORDED = json.loads((Path(__file__).parents[1] / "fixtures" / "h3" / "geometry.json").read_text())


@pytest.mark.parametrize(
    ("wish", "size", "frames", "latents", "audio", "rows", "crop"),
    [
        ((192, 112, 4), (192, 128), 22, 7, 37, 168, (0, 8, 192, 120)),
        ((640, 384, 24), (640, 384), 39, 12, 65, 2880, (0, 0, 640, 384)),
        ((256, 256, 8), (256, 256), 22, 7, 37, 448, (0, 0, 256, 256)),
        ((320, 180, 16), (320, 192), 22, 7, 37, 420, (0, 6, 320, 186)),
        ((512, 512, 16), (512, 512), 22, 7, 37, 1792, (0, 0, 512, 512)),
        ((854, 480, 24), (864, 480), 39, 12, 65, 4860, (5, 0, 859, 480)),
        ((1280, 720, 120), (1280, 736), 124, 37, 207, 34040, (0, 8, 1280, 728)),
    ],
)
def test_covering_table_of_h3(wish, size, frames, latents, audio, rows, crop):
    canvas = plan(*wish, H3)
    assert (canvas.gen_width, canvas.gen_height) == size
    assert canvas.gen_frames == frames
    assert canvas.latent_shape == (latents, size[1] // 16, size[0] // 16)
    assert canvas.audio_latents == audio
    assert canvas.rows == rows
    assert canvas.crop == crop
    assert (canvas.width, canvas.height, canvas.frames) == wish


@pytest.mark.parametrize(("frames", "recorded"), RECORDED["frames"].items())
def test_frame_counts_agree_with_diffusers(frames, recorded):
    frames = int(frames)
    assert audio_latents(recorded["aligned"]) == recorded["audio_t"]
    if frames > MAX_FRAMES:
        with pytest.raises(RequestError) as caught:
            plan(256, 256, frames, H3)
        assert caught.value.field == "frames"
        return
    canvas = plan(256, 256, frames, H3)
    if recorded["aligned"] == 5:  # diffusers allows two latents here, which its decoder then refuses
        assert (canvas.gen_frames, canvas.latent_frames) == (22, 7)
    else:
        assert (canvas.gen_frames, canvas.latent_frames) == (recorded["aligned"], recorded["latent_t"])


def test_firefly_makes_the_preview_size_itself():
    canvas = plan(192, 112, 22, FIREFLY)
    assert not canvas.snapped
    assert canvas.note == ""
    assert canvas.rows == 7 * 7 * 12
    assert canvas.audio_latents == 0
    assert plan(640, 384, 39, FIREFLY).snapped is False


def test_other_vae_geometry_is_respected():
    geometry = ModelGeometry(spatial_ratio=4, temporal_ratio=2, clip_length=9, token_drop=2, patch=(1, 2, 2))
    assert geometry.multiple == 8
    assert (geometry.chunk_latents, geometry.overlap_latents, geometry.overlap_frames) == (5, 3, 5)
    canvas = plan(33, 40, 15, geometry)
    assert (canvas.gen_width, canvas.gen_height, canvas.gen_frames) == (40, 40, 23)
    assert canvas.latent_frames == 13


def test_geometry_without_overlap():
    geometry = ModelGeometry(clip_length=16, token_drop=0)
    assert geometry.overlap_frames == 0
    assert [geometry.frames(geometry.chunks(n)) for n in (1, 16, 17)] == [16, 16, 32]


@pytest.mark.parametrize(
    ("wish", "note"),
    [
        ((320, 192, 22), ""),
        ((320, 180, 22), "Made at 320×192 and cropped to 320×180."),
        ((320, 192, 16), "Made with 22 frames, of which the first 16 frames are kept."),
        (
            (320, 180, 1),
            "Made at 320×192 with 22 frames, then cropped to 320×180, and the first frame is kept.",
        ),
    ],
)
def test_note_shows_the_wish_and_what_is_made(wish, note):
    canvas = plan(*wish, H3)
    assert canvas.note == note
    assert canvas.snapped == bool(note)


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ((31, 112, 4), "width"),
        ((192, 2049, 4), "height"),
        ((192, 112, 0), "frames"),
        ((192, 112, 346), "frames"),
        ((192.5, 112, 4), "width"),
        ((192, True, 4), "height"),
    ],
)
def test_bad_wish_names_its_field(wish, field):
    with pytest.raises(RequestError) as caught:
        plan(*wish, H3)
    assert caught.value.field == field
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("count", "wanted", "expected"),
    [
        (22, 4, [0, 7, 14, 21]),
        (22, 1, [11]),
        (22, 2, [0, 21]),
        (16, 3, [0, 8, 15]),
        (3, 8, [0, 1, 2]),
        (1, 1, [0]),
        (39, 4, [0, 13, 25, 38]),
    ],
)
def test_spread(count, wanted, expected):
    assert spread(count, wanted) == expected
