"""Jobs from submission to the last event, on a tiny random model: its bytes are as exact as a large one's."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline import (
    CancelledEvent,
    Failed,
    Finished,
    FirstlookError,
    FrameWritten,
    Job,
    ModelError,
    PhaseChanged,
    Preset,
    Request,
    RequestError,
    StepDone,
    Studio,
    events,
    export,
)
from pipeline.store import JobFolder
from pipeline.studio import QUEUE_LIMIT

PATIENCE = 600.0


@pytest.fixture
def studio(tmp_path, tiny):
    with Studio(tmp_path / "outputs", tiny, threads=1) as opened:
        yield opened


def wish(tiny: dict[str, Preset], preset: str = "tiny", **form: object) -> Request:
    return Request.from_form({"prompt": "a dog in the rain", "seed": 7} | form, tiny[preset])


def done(job: Job) -> Job:
    status = job.wait(PATIENCE)
    assert (status.state, status.fraction) == ("done", 1.0), status.message
    return job


def pictures(job: Job) -> list[bytes]:
    return [path.read_bytes() for path in sorted(job.frames_folder.glob("*.png"))]


def pixels(job: Job) -> np.ndarray:
    return np.stack([export.read_png(path) for path in sorted(job.frames_folder.glob("*.png"))])


def first_step(job: Job) -> StepDone:
    return next(event for event in job.follow() if isinstance(event, StepDone))


def test_a_preview_is_four_small_pictures(studio, tiny):
    job = done(studio.submit(wish(tiny, stage="preview")))
    assert [path.name for path in sorted(job.frames_folder.iterdir())] == [
        "0001.png",
        "0002.png",
        "0003.png",
        "0004.png",
        "generated.safetensors",
    ]
    for index in (1, 4):
        with Image.open(job.frame_path(index)) as picture:
            picture.load()
            assert picture.size == (192, 112)
            assert picture.text["seed"] == "7"
    status = job.snapshot()
    assert (status.width, status.height, status.frames_total, status.frames_written) == (192, 112, 4, 4)
    assert (status.step, status.steps, status.clip, status.seed) == (3, 3, False, "7")
    with pytest.raises(RequestError):
        job.frame_path(5)


def test_a_render_is_png_frames_and_a_clip(studio, tiny):
    job = done(studio.submit(wish(tiny, width=90, height=50, frames=5)))
    names = [path.name for path in sorted(job.frames_folder.iterdir())]
    assert names == [f"{index:04d}.png" for index in range(1, 6)]
    assert pixels(job).shape == (5, 50, 90, 3)
    assert job.clip_path.is_file() and job.snapshot().clip
    record = JobFolder(job.folder).read()
    assert record.state == "done"
    assert all(digest.startswith("sha256:") for digest in record.model.values())
    assert set(record.engine) >= {"kernels", "version"}
    assert set(record.timings["phases"]) == {"load", "text", "denoise", "decode", "export"}
    assert "90×50" in job.snapshot().note
    assert not list(job.folder.rglob("*.tmp"))


def test_a_picture_tells_its_whole_request(studio, tiny):
    job = done(studio.submit(wish(tiny, prompt="雨中的狗", seed=2**64 - 1, frames=5)))
    with Image.open(job.frame_path(5)) as picture:
        picture.load()
        story = json.loads(picture.text["firstlook"])
    assert picture.text["Description"] == "雨中的狗"
    assert story["request"]["seed"] == picture.text["seed"] == "18446744073709551615"
    assert story["request"]["guidance"] == 1.5 and story["frame"] == 5
    assert story["stages"][0]["steps"] == 4
    assert story["model"] == JobFolder(job.folder).read().model


def test_the_same_request_gives_the_same_bytes(studio, tiny):
    first, second = (done(studio.submit(wish(tiny, frames=5))) for _ in range(2))
    assert first.id != second.id
    assert pictures(first) == pictures(second)
    other = done(studio.submit(wish(tiny, frames=5, seed=8)))
    assert not np.array_equal(pixels(first), pixels(other))


def test_guidance_and_the_negative_prompt_reach_the_picture(studio, tiny):
    plain = pixels(done(studio.submit(wish(tiny, frames=5, guidance=1.0))))
    guided = pixels(done(studio.submit(wish(tiny, frames=5, guidance=6.0))))
    negative = pixels(done(studio.submit(wish(tiny, frames=5, guidance=6.0, negative_prompt="night"))))
    assert not np.array_equal(plain, guided)
    assert not np.array_equal(guided, negative)


def test_a_render_of_a_preview_equals_one_that_makes_its_own(studio, tiny):
    preview = done(studio.submit(wish(tiny, "tiny-first", stage="preview")))
    render = done(studio.submit(wish(tiny, "tiny-first", source=preview.id)))
    alone = done(studio.submit(wish(tiny, "tiny-first")))
    assert "preview" in alone.snapshot().phases and "preview" not in render.snapshot().phases
    assert np.array_equal(pixels(render), pixels(alone))
    shown = [path.read_bytes() for path in sorted((alone.folder / "preview").glob("*.png"))]
    assert len(shown) == 4
    assert [export.read_png(path).tolist() for path in sorted((alone.folder / "preview").glob("*.png"))] == [
        export.read_png(preview.frame_path(index)).tolist() for index in (1, 2, 3, 4)
    ]


def test_keep_0_starts_from_noise(studio, tiny):
    preview = done(studio.submit(wish(tiny, stage="preview")))
    from_noise = done(studio.submit(wish(tiny)))
    ignored = done(studio.submit(wish(tiny, source=preview.id, keep=0)))
    kept = done(studio.submit(wish(tiny, source=preview.id, keep=0.5)))
    assert np.array_equal(pixels(from_noise), pixels(ignored))
    assert not np.array_equal(pixels(from_noise), pixels(kept))


def test_what_is_kept_looks_like_the_preview(studio, tiny):
    """At t = 0.95 only a trace of noise is added, so even a random model can hardly leave the preview."""
    preview = done(studio.submit(wish(tiny, stage="preview")))
    near = pixels(done(studio.submit(wish(tiny, source=preview.id, keep=0.95)))).astype(float)
    far = pixels(done(studio.submit(wish(tiny, source=preview.id, keep=0.05)))).astype(float)
    none = pixels(done(studio.submit(wish(tiny, keep=0)))).astype(float)
    assert np.abs(far - none).mean() < np.abs(near - none).mean()


def test_events_replay_and_number_themselves(studio, tiny):
    job = studio.submit(wish(tiny, frames=5))
    live = list(job.follow())
    assert live == list(job.follow()) == list(job.follow(after=0))
    assert [event.seq for event in live] == list(range(1, len(live) + 1))
    assert live[3:] == list(job.follow(after=3))
    assert list(job.follow(after=len(live))) == []
    phases = [event.phase for event in live if isinstance(event, PhaseChanged)]
    assert phases == ["load", "text", "denoise", "decode", "export"]
    steps = [event.step for event in live if isinstance(event, StepDone)]
    assert steps == [1, 2, 3, 4]
    written = [event for event in live if isinstance(event, FrameWritten)]
    assert [event.index for event in written] == [1, 2, 3, 4, 5]
    assert all(Path(event.path).is_file() for event in written)
    assert isinstance(live[-1], Finished)


def test_two_followers_and_a_poller_see_the_same_job(studio, tiny):
    job = studio.submit(wish(tiny, "tiny-long", frames=5))
    seen: list[list[events.Event]] = [[], []]
    followers = [threading.Thread(target=lambda log=log: log.extend(job.follow())) for log in seen]
    for follower in followers:
        follower.start()
    fractions, etas = [], []
    while not (status := job.snapshot()).over:
        fractions.append(status.fraction)
        etas.append(status.eta_seconds)
        time.sleep(0.01)
    for follower in followers:
        follower.join(PATIENCE)
    assert seen[0] == seen[1] == list(job.follow())
    assert fractions == sorted(fractions) and fractions[-1] < 1.0
    assert len(set(fractions)) > 3
    assert any(eta is not None and eta >= 0 for eta in etas)
    json.dumps(job.snapshot().to_json())


def test_live_frames_are_jpegs_whose_revision_grows(studio, tiny):
    job = studio.submit(wish(tiny, width=90, height=50))
    list(job.follow())
    status = job.snapshot()
    assert status.live_count == 3 and status.live_revision >= 2
    for index in range(3):
        revision, jpeg = job.live(index)
        assert revision == status.live_revision
        (job.folder / "x.jpg").write_bytes(jpeg)
        with Image.open(job.folder / "x.jpg") as picture:
            assert (picture.format, picture.size) == ("JPEG", (90, 50))
    assert job.live(3) is None


def test_cancel_takes_effect_at_once_and_keeps_the_steps(studio, tiny):
    job = studio.submit(wish(tiny, "tiny-long"))
    first_step(job)
    job.cancel()
    status = job.wait(PATIENCE)
    assert status.state == "cancelled" and status.step < 200
    assert isinstance(list(job.follow())[-1], CancelledEvent)
    assert JobFolder(job.folder).read().state == "cancelled"
    assert (job.folder / "latents.safetensors").is_file()


def test_a_waiting_job_is_cancelled_without_its_turn(studio, tiny):
    blocker = studio.submit(wish(tiny, "tiny-long"))
    waiting = studio.submit(wish(tiny))
    assert waiting.snapshot().state == "queued"
    waiting.cancel()
    assert waiting.wait(PATIENCE).state == "cancelled"
    assert not blocker.snapshot().over
    blocker.cancel()
    blocker.wait(PATIENCE)


def test_a_full_queue_refuses_and_leaves_no_folder(studio, tiny):
    blocker = studio.submit(wish(tiny, "tiny-long"))
    first_step(blocker)
    waiting = [studio.submit(wish(tiny)) for _ in range(QUEUE_LIMIT)]
    with pytest.raises(FirstlookError, match="waiting"):
        studio.submit(wish(tiny))
    assert len(list(studio.outputs.iterdir())) == 1 + QUEUE_LIMIT
    assert studio.current() is blocker
    for job in [*waiting, blocker]:
        job.cancel()
    blocker.wait(PATIENCE)


def test_racing_submissions_never_overfill_the_queue(studio, tiny):
    blocker = studio.submit(wish(tiny, "tiny-long"))
    first_step(blocker)
    accepted: list[Job] = []

    def submit() -> None:
        with contextlib.suppress(FirstlookError):
            accepted.append(studio.submit(wish(tiny)))

    racers = [threading.Thread(target=submit) for _ in range(3 * QUEUE_LIMIT)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert len(accepted) == QUEUE_LIMIT
    assert len({job.id for job in accepted}) == QUEUE_LIMIT
    for job in [*accepted, blocker]:
        job.cancel()
    blocker.wait(PATIENCE)


def test_the_disk_is_the_database(tmp_path, tiny):
    with Studio(tmp_path, tiny, threads=1) as studio:
        older = done(studio.submit(wish(tiny, prompt="first", frames=5)))
        newer = done(studio.submit(wish(tiny, prompt="second", stage="preview")))
    with Studio(tmp_path, tiny, threads=1) as reopened:
        newest, oldest = reopened.jobs()
        assert (newest.id, oldest.id) == (newer.id, older.id)
        assert (newest.prompt, newest.stage, newest.state) == ("second", "preview", "done")
        assert not newest.clip
        assert (oldest.frames, oldest.clip) == (5, True)
        assert newest.thumbnail == newer.frame_path(1)
        again = reopened.job(older.id)
        assert again.request == older.request
        assert again.snapshot().state == "done" and again.snapshot().frames_written == 5
        assert again.frame_path(5).is_file()
        assert isinstance(list(again.follow())[-1], Finished)
        with pytest.raises(FirstlookError, match="finished"):
            reopened.resume(older.id)


def test_broken_folders_are_listed_and_left_alone(studio, tiny):
    job = done(studio.submit(wish(tiny, stage="preview")))
    path = job.folder / "job.json"
    wrong_seed = path.read_text().replace('"seed": "7"', '"seed": "x"')
    for text in ("", "{", "[]", "null", '{"format": 2}', wrong_seed):
        path.write_text(text)
        (info,) = studio.jobs()
        assert info.broken and str(path) in info.broken and info.request is None
        with pytest.raises(FirstlookError):
            studio.resume(job.id)
        assert path.read_text() == text
    path.unlink()
    assert studio.jobs()[0].broken
    (studio.outputs / "holiday pictures").mkdir()
    (studio.outputs / "notes.txt").write_text("mine")
    assert len(studio.jobs()) == 1


def test_a_broken_preview_is_no_source(studio, tiny):
    job = done(studio.submit(wish(tiny, stage="preview")))
    (job.folder / "preview" / "generated.safetensors").unlink()
    for source in (job.id, "2026-01-01-000000-nothing-0000"):
        with pytest.raises(RequestError) as caught:
            studio.submit(wish(tiny, source=source))
        assert caught.value.field == "source"


@pytest.mark.parametrize("name", ["../outside", "/etc", ".", "..", "", "nothing"])
def test_names_never_lead_out_of_the_outputs(studio, name):
    (studio.outputs.parent / "outside").mkdir()
    with pytest.raises(RequestError):
        studio.job(name)
    with pytest.raises(RequestError):
        studio.resume(name)


def test_a_folder_another_program_works_on_is_left_to_it(studio, tiny):
    job = studio.submit(wish(tiny, "tiny-long"))
    first_step(job)
    job.cancel()
    job.wait(PATIENCE)
    other = JobFolder(job.folder)
    other.acquire()
    other.write(replace(other.read(), state="running"))
    assert studio.jobs()[0].state == "running"
    with pytest.raises(FirstlookError, match="Another program"):
        studio.resume(job.id)
    other.release()
    assert studio.jobs()[0].state == "interrupted"


def test_closing_leaves_a_job_that_can_be_resumed(tmp_path, tiny):
    with Studio(tmp_path, tiny, threads=1) as studio:
        job, waiting = studio.submit(wish(tiny, "tiny-long")), studio.submit(wish(tiny))
        first_step(job)
    assert job.snapshot().state == waiting.snapshot().state == "interrupted"
    with pytest.raises(FirstlookError):
        studio.submit(wish(tiny))
    with Studio(tmp_path, tiny, threads=1) as reopened:
        assert {info.state for info in reopened.jobs()} == {"interrupted"}
        done(reopened.resume(waiting.id))


def test_missing_model_files_are_each_told(studio, tiny, tmp_path):
    preset = replace(tiny["minimax-h3"], model=tmp_path / "nowhere")
    studio.presets["minimax-h3"] = preset
    try:
        request = Request.from_form({"prompt": "x"}, preset)
        preflight = studio.preflight(request)
        assert {entry.role for entry in preflight.missing} == {file.role for file in preset.files}
        assert (preflight.canvas.gen_width, preflight.canvas.gen_frames) == (640, 39)
        with pytest.raises(ModelError) as caught:
            studio.submit(request)
        for file in preset.files:
            assert str(tmp_path / "nowhere" / file.path) in str(caught.value)
        assert studio.jobs() == []
    finally:
        studio.presets["minimax-h3"] = tiny["minimax-h3"]


def test_preflight_shows_the_wish_and_what_is_made(studio, tiny):
    preflight = studio.preflight(wish(tiny, width=90, height=50, frames=30))
    canvas = preflight.canvas
    assert (canvas.gen_width, canvas.gen_height, canvas.gen_frames) == (96, 64, 39)
    assert any("96×64" in note and "90×50" in note for note in preflight.notes)
    assert preflight.estimate_seconds is None
    done(studio.submit(wish(tiny, frames=5)))
    assert studio.preflight(wish(tiny)).estimate_seconds > 0


def test_unknown_presets_are_a_matter_of_the_request(studio, tiny):
    with pytest.raises(RequestError) as caught:
        studio.submit(replace(wish(tiny), preset="gone"))
    assert caught.value.field == "preset"


def test_outputs_that_cannot_be_written_are_told(tmp_path, tiny):
    (tmp_path / "file").write_text("in the way")
    with Studio(tmp_path / "file" / "outputs", tiny, threads=1) as studio, pytest.raises(FirstlookError):
        studio.submit(wish(tiny))


def test_a_job_may_have_a_folder_of_its_own(studio, tiny, tmp_path):
    job = done(studio.submit(wish(tiny, stage="preview"), tmp_path / "mine"))
    assert job.folder == tmp_path / "mine" and job.frame_path(1).is_file()
    with pytest.raises(FirstlookError, match="not empty"):
        studio.submit(wish(tiny), tmp_path / "mine")


def test_warming_up_loads_the_models_before_the_first_job(studio, tiny):
    studio.warm("tiny")
    job = done(studio.submit(wish(tiny, stage="preview")))
    deadline = time.monotonic() + PATIENCE
    while studio.current() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    again = done(studio.submit(wish(tiny, stage="preview", seed=8)))
    assert JobFolder(again.folder).read().timings["load"] is None
    assert pictures(job) != pictures(again)


FULL_DISK = """
import sys
from pathlib import Path
from pipeline import Request, Studio, load_presets
presets = load_presets(Path(sys.argv[1]))
outputs = Path(sys.argv[2])
with Studio(outputs, presets, threads=1) as studio:
    job = studio.submit(Request.from_form({"prompt": "x", "seed": 1}, presets["tiny-long"]))
    next(event for event in job.follow() if type(event).__name__ == "StepDone")
    with open(outputs / "ballast", "wb", buffering=0) as ballast:
        try:
            while ballast.write(b"x" * 4096):
                pass
        except OSError:
            pass
    status = job.wait(600)
    print(status.state, (job.folder / "latents.safetensors").is_file(), status.message, sep="|")
    (outputs / "ballast").unlink()
    print(studio.resume(job.id).wait(600).state)
"""


def can_mount() -> bool:
    run = ["unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
    try:
        return subprocess.run(run, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not can_mount(), reason="needs a small disk of its own: mounting is not allowed here")
def test_a_disk_that_fills_up_fails_the_job_and_keeps_its_steps(tmp_path, tiny_folder):
    disk = tmp_path / "disk"
    disk.mkdir()
    inside = f'mount -t tmpfs -o size=36m tmpfs {disk} && exec {sys.executable} -c "$0" {tiny_folder} {disk}'
    run = ["unshare", "-Urm", "sh", "-c", inside, FULL_DISK]
    root = Path(__file__).parents[2]
    output = subprocess.run(run, cwd=root, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert output.returncode == 0, output.stderr
    failed, resumed = output.stdout.splitlines()
    state, kept, message = failed.split("|")
    assert (state, kept) == ("failed", "True")
    assert "is full" in message and message.count(".") <= 1 + str(disk).count(".")
    assert resumed == "done"


def test_failures_reach_the_followers(studio, tiny, tmp_path):
    job = done(studio.submit(wish(tiny, stage="preview")))
    render = wish(tiny, source=job.id)
    blocker = studio.submit(wish(tiny, "tiny-long"))
    waiting = studio.submit(render)
    (job.folder / "preview" / "generated.safetensors").write_bytes(b"damaged")
    blocker.cancel()
    status = waiting.wait(PATIENCE)
    assert status.state == "failed" and "make the preview again" in status.message
    assert isinstance(list(waiting.follow())[-1], Failed)
    assert JobFolder(waiting.folder).read().message == status.message
