"""A render killed anywhere goes on and ends in the same bytes, as if nothing had happened."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import Event, FrameWritten, Job, Request, StepDone, Studio, load_presets
from pipeline.latents import load_state
from pipeline.store import JobFolder
from tests.pipeline.running import write_presets, write_running_model

ROOT = Path(__file__).parents[2]
PATIENCE = 600.0


def start(folder: Path, tiny_folder: Path, preset: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "pipeline", "render", "--prompt", "a dog", "--seed", "7"]
    command += ["--preset", preset, "--presets", str(tiny_folder), "--threads", "1", "--out", str(folder)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def resume(folder: Path, tiny_folder: Path) -> None:
    command = [sys.executable, "-m", "pipeline", "resume", str(folder), "--presets", str(tiny_folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr


def kill_when(run: subprocess.Popen, reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert run.poll() is None, run.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.001)
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    run.stderr.close()


def step_on_disk(folder: Path) -> int:
    try:
        return json.loads((folder / "job.json").read_text())["step"]
    except FileNotFoundError:
        return 0


def is_step(event: Event) -> bool:
    return isinstance(event, StepDone)


def contents(folder: Path) -> dict[str, bytes]:
    """Every picture and the final latents, by name."""
    files = [*folder.rglob("*.png"), folder / "latents.safetensors"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny_folder) -> Path:
    """The long render, left alone."""
    folder = tmp_path_factory.mktemp("whole") / "job"
    assert start(folder, tiny_folder, "tiny-long").communicate(timeout=PATIENCE)[1] is not None
    assert JobFolder(folder).read().state == "done"
    return folder


def test_killed_while_denoising_it_resumes_to_the_same_bytes(tmp_path, tiny_folder, whole):
    folder = tmp_path / "job"
    kill_when(start(folder, tiny_folder, "tiny-long"), lambda: step_on_disk(folder) >= 20)
    killed_at = load_state(folder / "latents.safetensors").step
    assert 20 <= killed_at < 200
    assert JobFolder(folder).info().state == "interrupted"
    resume(folder, tiny_folder)
    assert contents(folder) == contents(whole)
    record = JobFolder(folder).read()
    assert (record.state, record.step, record.frames, record.clip) == ("done", 200, 22, True)


def test_killed_twice_and_while_writing_frames_it_still_does(tmp_path, tiny_folder, whole):
    folder = tmp_path / "job"
    kill_when(start(folder, tiny_folder, "tiny-long"), lambda: step_on_disk(folder) >= 3)
    again = [sys.executable, "-m", "pipeline", "resume", str(folder), "--presets", str(tiny_folder)]
    run = subprocess.Popen(again, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    kill_when(run, (folder / "frames" / "0002.png").exists)
    resume(folder, tiny_folder)
    assert contents(folder) == contents(whole)


def test_firefly_killed_in_the_middle_ends_in_the_same_pictures(tmp_path):
    """The model that people use, by the command they type."""
    nobody = tmp_path / "no presets"
    killed, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    kill_when(start(killed, nobody, "quick"), lambda: step_on_disk(killed) >= 2)
    assert 2 <= load_state(killed / "latents.safetensors").step < 6
    assert not (killed / "frames").exists()
    resume(killed, nobody)
    start(undisturbed, nobody, "quick").communicate(timeout=PATIENCE)
    assert len(contents(killed)) == 22 + 1
    assert contents(killed) == contents(undisturbed)


def run_until(studio: Studio, request: Request, stop: Callable[[Event], bool]) -> Job:
    """A job that is cancelled at the first event that `stop` accepts."""
    job = studio.submit(request)
    for event in job.follow():
        if stop(event):
            job.cancel()
    job.wait(PATIENCE)
    return job


@pytest.mark.parametrize(
    "stop",
    [
        lambda event: isinstance(event, StepDone) and event.stage == "preview" and event.step == 1,
        lambda event: isinstance(event, StepDone) and event.stage == "preview" and event.step == 3,
        lambda event: isinstance(event, StepDone) and event.stage == "render" and event.step == 1,
        lambda event: isinstance(event, StepDone) and event.stage == "render" and event.step == 2,
        lambda event: isinstance(event, FrameWritten) and event.index == 1,
    ],
    ids=["in the preview", "after the preview", "in the render", "after the render", "while writing"],
)
def test_a_render_with_its_own_preview_stops_anywhere_and_goes_on(tmp_path, tiny, stop):
    request = Request.from_form({"prompt": "a dog", "seed": 7}, tiny["tiny-first"])
    with Studio(tmp_path, tiny, threads=1) as studio:
        undisturbed = studio.submit(request)
        assert undisturbed.wait(PATIENCE).state == "done"
        job = run_until(studio, request, stop)
        # Cancelling comes too late for a job this small now and then; then there is nothing to resume.
        if job.snapshot().state != "done":
            assert studio.resume(job.id).wait(PATIENCE).state == "done"
        assert contents(job.folder) == contents(undisturbed.folder)


def test_elapsed_time_adds_up_over_runs(tmp_path, tiny):
    request = Request.from_form({"prompt": "a dog", "seed": 7}, tiny["tiny-long"])
    with Studio(tmp_path, tiny, threads=1) as studio:
        job = run_until(studio, request, lambda event: isinstance(event, StepDone) and event.step == 50)
        before = JobFolder(job.folder).read().elapsed
        resumed = studio.resume(job.id)
        assert resumed.snapshot().elapsed_seconds >= before > 0
        assert resumed.wait(PATIENCE).elapsed_seconds > before
        first = next(event for event in resumed.follow() if isinstance(event, StepDone))
        assert first.step > 50


def test_another_model_or_preset_is_not_mixed_into_a_job(tmp_path):
    write_running_model(tmp_path / "model")
    presets = write_presets(tmp_path)
    request = Request.from_form({"prompt": "a dog", "seed": 7}, presets["tiny-first"])

    def stop(event: Event) -> bool:
        return isinstance(event, StepDone) and event.stage == "preview"

    with Studio(tmp_path / "outputs", presets, threads=1) as studio:
        job = run_until(studio, request, stop)
    preset = tmp_path / "tiny-first.toml"
    preset.write_text(preset.read_text().replace("steps = 3", "steps = 5"))
    changed = load_presets(tmp_path)
    with Studio(tmp_path / "outputs", changed, threads=1) as studio:
        status = studio.resume(job.id).wait(PATIENCE)
        assert status.state == "failed" and "preset tiny-first changed" in status.message
    tokenizer = tmp_path / "model" / "tokenizer" / "tokenizer_config.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    with Studio(tmp_path / "outputs", presets, threads=1) as studio:
        status = studio.resume(job.id).wait(PATIENCE)
        assert status.state == "failed" and "files of Tiny changed" in status.message


def test_damaged_latents_are_told_and_not_overwritten(tmp_path, tiny):
    request = Request.from_form({"prompt": "a dog", "seed": 7}, tiny["tiny-long"])
    with Studio(tmp_path, tiny, threads=1) as studio:
        job = run_until(studio, request, is_step)
        path = job.folder / "latents.safetensors"
        damaged = path.read_bytes()[:-100]
        path.write_bytes(damaged)
        status = studio.resume(job.id).wait(PATIENCE)
        assert status.state == "failed" and str(path) in status.message
        assert path.read_bytes() == damaged
