"""Schedules, Euler steps and guidance against diffusers, and the promises of resuming and keeping."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import torch
from diffusers import MiniMaxH3Scheduler, MiniMaxH3Transformer3DModel
from safetensors.torch import load_file

from pipeline.engine import Model
from pipeline.errors import Cancelled, EngineError
from pipeline.sampler import Branch, Schedule, keyframe_rows, noised, sample, schedule, sigmas
from pipeline.sequence import audio_to_rows, pack, patchify, row_timesteps, rows_to_audio, unpatchify
from tests.pipeline.h3_files import fixture_gguf
from tests.pipeline.torch_run import TorchRun

FIXTURES = Path(__file__).parents[1] / "fixtures" / "h3"
SCHEDULER = json.loads((FIXTURES / "scheduler.json").read_text())
PATCH = (1, 2, 2)


class LinearRun:
    """A velocity field simple enough to follow by hand: a constant target, and what it was asked."""

    def __init__(self, target: float, blocks: int = 3) -> None:
        self.target, self.blocks, self.calls = target, blocks, []

    def velocity(self, video, audio, row_timesteps, progress=None):
        self.calls.append(row_timesteps)
        for block in range(self.blocks):
            if progress is not None and progress(block + 1, self.blocks):
                raise Cancelled
        return torch.full_like(video, self.target), None if audio is None else torch.full_like(audio, 2.0)


@pytest.fixture(scope="module")
def model_a() -> MiniMaxH3Transformer3DModel:
    config = json.loads((FIXTURES / "model_a_config.json").read_text())
    model = MiniMaxH3Transformer3DModel(**config).eval()
    model.load_state_dict(load_file(FIXTURES / "model_a.safetensors"))
    return model


def branch(run, text_rows: int = 2, shape=(2, 2, 2), audio: int = 0) -> Branch:
    return Branch(run, pack(torch.ones(text_rows), shape, PATCH, audio))


@pytest.mark.parametrize("name", SCHEDULER["grids"])
def test_grids_equal_diffusers_recorded_ones(name):
    shift, points = (float(part[5:]) if part[0] == "s" else int(part[1:]) for part in name.split("_"))
    recorded = SCHEDULER["grids"][name]
    levels = sigmas(points - 1, shift)
    assert levels.dtype == torch.float32
    assert levels.tolist() == recorded["sigmas"]
    assert (1.0 - levels[:-1]).tolist() == recorded["timesteps"]


@pytest.mark.parametrize(("steps", "shift"), [(1, 12.0), (7, 12.0), (19, 3.0), (200, 12.0), (12, 1.0)])
def test_grids_and_steps_equal_diffusers_class(steps, shift):
    reference = MiniMaxH3Scheduler(shift=shift)
    reference.set_timesteps(steps + 1)
    plan = schedule(steps, shift, shift)
    assert torch.equal(plan.video, reference.sigmas)
    assert plan.steps == steps
    rows = torch.randn(4, 96, generator=torch.Generator().manual_seed(1))
    expected = rows
    velocities = torch.randn(steps, 4, 96, generator=torch.Generator().manual_seed(2))

    class Replay:
        def velocity(self, video, audio, row_timesteps, progress=None):
            return velocities[next(count)], None

    count = iter(range(steps))
    one = Branch(Replay(), pack(torch.ones(1), (1, 4, 4), PATCH))
    for made in sample(one, plan, rows):
        timestep = reference.timesteps[made.index]
        expected = reference.step(velocities[made.index], timestep, expected, return_dict=False)[0]
        assert torch.equal(made.video, expected)
    assert made.sigma == 0.0
    assert torch.equal(patchify(made.estimate, PATCH), made.video)


@contextlib.contextmanager
def torch_branch(model, folder, sequence, plan, text):
    yield Branch(TorchRun(model, sequence, text), sequence)


@contextlib.contextmanager
def engine_branch(model, folder, sequence, plan, text):
    path = fixture_gguf(folder, "a")
    with (
        Model.open(path, threads=1) as opened,
        opened.prepare(sequence, text, plan.timesteps(sequence)) as run,
    ):
        yield Branch(run, sequence)


@pytest.mark.parametrize("open_branch", [torch_branch, engine_branch])
def test_trajectory_equals_the_recorded_one(model_a, open_branch, tmp_path):
    recorded = load_file(FIXTURES / "trajectory_a_fl2va.safetensors")
    sequence = pack(recorded["in.text_tags"], (7, 4, 4), PATCH, 37, ("first", "last"))
    anchors = torch.cat(
        [
            patchify(
                keyframe_rows(recorded[f"in.condition{i}"][0], recorded[f"noise.condition{i}"][0]), PATCH
            )
            for i in (0, 1)
        ]
    )
    video, sound = patchify(recorded["noise.video"][0], PATCH), recorded["noise.audio_rows"]
    torch.testing.assert_close(torch.cat([anchors, video]), recorded["in.video_rows"], rtol=0, atol=1e-6)
    plan = schedule(3, 12.0, 3.0)
    for step in range(3):
        times = recorded[f"step{step}.timestep"][recorded[f"step{step}.timestep_indices"]]
        assert torch.equal(plan.rows_at(step, sequence), times)
    with open_branch(model_a, tmp_path, sequence, plan, recorded["in.text"][0].contiguous()) as one:
        made = list(sample(one, plan, video, sound, keyframes=anchors))
    assert [step.index for step in made] == [0, 1, 2]
    for step in made:
        name = f"step{step.index}"
        expected = recorded[f"{name}.video_rows"][sequence.condition_rows :]
        torch.testing.assert_close(step.video, expected, rtol=1e-5, atol=2e-5)
        torch.testing.assert_close(step.audio, recorded[f"{name}.audio_rows"], rtol=1e-5, atol=2e-5)
    final = unpatchify(made[-1].video, (7, 4, 4), PATCH)
    torch.testing.assert_close(final, recorded["out.video_latents"][0], rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(made[-1].estimate, final)
    audio = rows_to_audio(made[-1].audio)
    torch.testing.assert_close(audio, recorded["out.audio_latents"], rtol=1e-5, atol=2e-5)


def test_prepared_timesteps_cover_every_row(model_a):
    sequence = pack(torch.ones(3), (7, 4, 4), PATCH, 37, ("first",))
    plan = schedule(4, 12.0, 3.0)
    values = plan.timesteps(sequence)
    assert values == sorted(set(values))
    assert len(values) == 2 * 4 - 1 + 1  # both grids share t = 0, and the keyframe adds 0.999
    used = set()
    for step in range(plan.steps):
        used |= set(plan.rows_at(step, sequence).tolist())
    assert used == set(values)
    assert plan.timesteps(pack(torch.ones(3), (2, 4, 4), PATCH)) == (1.0 - plan.video[:-1]).tolist()


def test_resuming_ends_in_the_same_bytes(model_a):
    generator = torch.Generator().manual_seed(7)
    sequence = pack(torch.ones(4), (2, 4, 4), PATCH, 8)
    run = Branch(TorchRun(model_a, sequence, torch.randn(4, 40, generator=generator)), sequence)
    video = torch.randn(8, 96, generator=generator)
    audio = torch.randn(16, 32, generator=generator)
    plan = schedule(4)
    whole = list(sample(run, plan, video, audio))
    resumed = list(sample(run, plan, whole[1].video.clone(), whole[1].audio.clone(), start=2))
    assert [step.index for step in resumed] == [2, 3]
    assert torch.equal(resumed[-1].video, whole[-1].video)
    assert torch.equal(resumed[-1].audio, whole[-1].audio)


def test_guidance_extrapolates_between_the_branches():
    with_prompt, without = LinearRun(1.0), LinearRun(0.5)
    plan = Schedule(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0]))
    start = torch.zeros(2, 96)
    free = branch(without, text_rows=1)
    (step,) = sample(branch(with_prompt), plan, start, unconditional=free, guidance=3.0)
    assert torch.equal(step.video, torch.full((2, 96), 0.5 + 3.0 * 0.5))
    assert with_prompt.calls[0].shape == (2 + 2,)
    assert without.calls[0].shape == (1 + 2,)


@pytest.mark.parametrize("free", [True, False])
def test_scale_one_or_no_second_branch_costs_one_forward(free):
    with_prompt, without = LinearRun(1.0), LinearRun(0.5)
    guidance = 1.0 if free else 4.0
    other = branch(without) if free else None
    steps = list(
        sample(branch(with_prompt), schedule(2), torch.zeros(2, 96), unconditional=other, guidance=guidance)
    )
    assert len(with_prompt.calls) == 2
    assert without.calls == []
    torch.testing.assert_close(steps[-1].video, torch.ones(2, 96))


def test_guidance_moves_the_sound_too():
    plan = Schedule(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0]))
    both = branch(LinearRun(1.0), audio=3), branch(LinearRun(0.0), audio=3)
    (step,) = sample(
        both[0], plan, torch.zeros(2, 96), torch.zeros(6, 32), unconditional=both[1], guidance=2.0
    )
    assert torch.equal(step.audio, torch.full((6, 32), 2.0))
    assert torch.equal(step.video, torch.full((2, 96), 2.0))


def test_progress_counts_blocks_over_both_branches_and_cancels():
    seen = []

    def watch(step, block, blocks):
        seen.append((step, block, blocks))
        return False

    first, second = branch(LinearRun(1.0)), branch(LinearRun(0.5))
    list(sample(first, schedule(2), torch.zeros(2, 96), unconditional=second, guidance=2.0, progress=watch))
    assert seen == [(step, block, 6) for step in (0, 1) for block in range(1, 7)]

    steps = []
    with pytest.raises(Cancelled):
        for step in sample(first, schedule(3), torch.zeros(2, 96), progress=lambda step, *_: step == 1):
            steps.append(step)
    assert [step.index for step in steps] == [0]


def test_numbers_that_are_not_finite_stop_the_run():
    with pytest.raises(EngineError, match="Step 1 of 2"):
        list(sample(branch(LinearRun(float("nan"))), schedule(2), torch.zeros(2, 96)))


@pytest.mark.parametrize(
    ("steps", "keep", "left"),
    [(12, 0.0, 12), (12, 0.01, 12), (12, 0.5, 6), (12, 0.9, 2), (10, 0.9, 1), (1, 0.4, 1), (20, 0.95, 1)],
)
def test_keep_leaves_its_share_of_the_steps(steps, keep, left):
    plan = schedule(steps, 12.0, 3.0, keep)
    assert plan.steps == left
    assert plan.video[0].item() == torch.tensor(1.0 - keep, dtype=torch.float32).item()
    assert plan.video[-1].item() == 0.0
    assert (plan.video[1:] < plan.video[:-1]).all()
    assert torch.equal(plan.audio, sigmas(left, 3.0))


def test_without_shift_keep_enters_the_full_grid_late():
    assert torch.equal(schedule(8, 1.0, 1.0, 0.25).video, sigmas(8, 1.0)[2:])


def test_keeping_a_point_of_the_grid_continues_on_the_same_curve():
    full = sigmas(12, 12.0)
    rest = sigmas(5, 12.0, full[7].item())
    torch.testing.assert_close(rest, full[7:])


def test_noised_runs_from_noise_to_clean():
    clean, field = torch.full((1, 1, 1, 1), 2.0), torch.full((1, 1, 1, 1), -2.0)
    assert noised(clean, field, 0.0).item() == -2.0
    assert noised(clean, field, 0.75).item() == 1.0


def test_unequal_grids_are_refused():
    with pytest.raises(ValueError, match="noise levels"):
        Schedule(sigmas(3, 12.0), sigmas(4, 3.0))


@pytest.mark.parametrize(("steps", "shift", "start"), [(0, 12.0, 1.0), (3, 0.0, 1.0), (3, 12.0, 0.0)])
def test_senseless_schedules_are_refused(steps, shift, start):
    with pytest.raises(ValueError, match="schedule"):
        sigmas(steps, shift, start)


def test_audio_rows_round_trip_through_the_sampler_layout():
    latents = torch.arange(2 * 4 * 3.0).reshape(2, 4, 3)
    assert torch.equal(rows_to_audio(audio_to_rows(latents)), latents)
    assert row_timesteps(pack(torch.ones(1), (1, 2, 2), PATCH, 1), 0.5, 0.25).tolist() == [
        0.5,
        0.25,
        0.25,
        0.5,
    ]
