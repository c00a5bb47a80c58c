"""Packing against recorded layouts of diffusers, including two that equal constants of another
implementation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipeline.errors import ModelError
from pipeline.sequence import (
    audio_to_rows,
    pack,
    patchify,
    row_timesteps,
    rows_to_audio,
    unpatchify,
)

FIXTURES = Path(__file__).parents[1] / "fixtures" / "h3"
LAYOUTS = load_file(FIXTURES / "layouts.safetensors")
CHECKSUMS = json.loads((FIXTURES / "layout_checksums.json").read_text())
PATCH = (1, 2, 2)
KEYFRAMES = {
    "tiny": (),
    "t2va_192x128_22f": (),
    "fl2va_first_160x256_39f": ("first",),
    "fl2va_last_64x64_124f": ("last",),
    "fl2va_both_96x64_90f": ("first", "last"),
}


@pytest.mark.parametrize("name", KEYFRAMES)
def test_layout_is_bit_equal_to_diffusers(name):
    recorded = {key.split(".", 1)[1]: value for key, value in LAYOUTS.items() if key.startswith(name + ".")}
    text, frames, height, width, audio, _, condition_rows, _, total = recorded["dims"].tolist()
    sequence = pack(recorded["text_tags"], (frames, height, width), PATCH, audio, KEYFRAMES[name])
    assert sequence.rows == total
    assert sequence.text_rows == text
    assert sequence.condition_rows == condition_rows
    assert sequence.position_ids.dtype == torch.float64
    for field in ("position_ids", "token_tags", "video_indices", "audio_indices", "text_indices"):
        assert torch.equal(getattr(sequence, field), recorded[field]), field


@pytest.mark.parametrize(
    ("name", "anchors"),
    [
        ("tiny", ()),
        ("fl2va_864x480_56f", ("first", "last")),
        ("t2va_1344x768_124f", ()),
        ("fl2va_both_1344x768_345f", ("first", "last")),
    ],
)
def test_large_layouts_match_their_checksums(name, anchors):
    recorded = CHECKSUMS[name]
    shape = (recorded["latent_t"], recorded["latent_h"], recorded["latent_w"])
    tags = torch.ones(recorded["text"], dtype=torch.int64)
    sequence = pack(tags, shape, PATCH, recorded["audio_t"], anchors)
    positions = sequence.position_ids
    weights = torch.arange(1, sequence.rows + 1, dtype=torch.float64)
    assert sequence.rows == recorded["seq"]
    assert sequence.condition_rows == recorded["cond_rows"]
    assert positions.sum(0).tolist() == pytest.approx(recorded["sum"], rel=1e-12, abs=1e-9)
    assert (positions * weights[:, None]).sum(0).tolist() == pytest.approx(recorded["weighted"], rel=1e-12)
    assert positions[-1].tolist() == recorded["last_row"]
    if recorded["last_anchor_t"] is not None:
        last = sequence.video_indices[sequence.condition_rows - 1]
        assert positions[last, 0].item() == recorded["last_anchor_t"]


def test_square_patch_of_one_spans_the_same_range_in_finer_steps():
    coarse = pack(torch.ones(3), (2, 4, 4), (1, 2, 2)).position_ids[3:]
    fine = pack(torch.ones(3), (2, 4, 4), (1, 1, 1)).position_ids[3:]
    assert coarse.shape[0] * 4 == fine.shape[0]
    assert sorted({row[1] for row in coarse.tolist()}) == [0.0, 16.0]
    assert sorted({row[1] for row in fine.tolist()}) == [0.0, 8.0, 16.0, 24.0]
    assert sorted({row[0] for row in fine.tolist()}) == [3.0, 3.0 + 5 / 3]


def test_no_audio_and_no_text():
    sequence = pack(torch.ones(0), (2, 2, 2), (1, 1, 1))
    assert sequence.audio_indices.shape == (0,)
    assert sequence.rows == sequence.video_rows == 8


def test_row_timesteps_follow_the_rows():
    tags = torch.tensor([1, 0, 1])
    sequence = pack(tags, (2, 2, 2), PATCH, 2, ("first",))
    times = row_timesteps(sequence, 0.25, 0.5)
    assert times.dtype == torch.float32
    assert times[:3].tolist() == [0.25] * 3
    assert times[sequence.audio_indices].tolist() == [0.5] * 4
    assert times[sequence.video_indices].tolist() == [torch.tensor(0.999).item(), 0.25, 0.25]
    late = row_timesteps(sequence, 0.9995, 0.5)
    assert late[sequence.video_indices[0]].item() == late[0].item()


def test_timesteps_agree_with_the_recorded_forward():
    case = load_file(FIXTURES / "case_a_fl2va_step1.safetensors")
    tags = case["in.token_tags"][case["in.text_indices"]]
    sequence = pack(tags, (7, 4, 4), PATCH, 37, ("first", "last"))
    video, audio = case["in.timestep"][0].item(), case["in.timestep"][1].item()
    assert torch.equal(
        row_timesteps(sequence, video, audio), case["in.timestep"][case["in.timestep_indices"]]
    )
    assert torch.equal(sequence.position_ids, case["in.position_ids"])


def test_patchify_matches_diffusers_and_inverts():
    recorded = load_file(FIXTURES / "patchify.safetensors")
    latents = recorded["video_latents_3x2x4x6"][0]
    rows = patchify(latents, PATCH)
    assert torch.equal(rows, recorded["video_rows"])
    assert torch.equal(unpatchify(rows, (2, 4, 6), PATCH), latents)
    audio = recorded["audio_latents_2x4x3"]
    assert torch.equal(audio_to_rows(audio), recorded["audio_rows"])
    assert torch.equal(rows_to_audio(recorded["audio_rows"]), audio)


def test_patch_of_one_is_a_transpose():
    latents = torch.arange(2 * 3 * 2 * 5, dtype=torch.float32).reshape(2, 3, 2, 5)
    rows = patchify(latents, (1, 1, 1))
    assert torch.equal(rows, latents.flatten(1).T)
    assert torch.equal(unpatchify(rows, (3, 2, 5), (1, 1, 1)), latents)


@pytest.mark.parametrize(
    ("shape", "patch"), [((2, 3, 4), (1, 2, 2)), ((0, 2, 2), (1, 2, 2)), ((2, 2, 2), (2, 1, 1))]
)
def test_shapes_without_a_rule_are_refused(shape, patch):
    with pytest.raises(ModelError):
        pack(torch.ones(1), shape, patch)
