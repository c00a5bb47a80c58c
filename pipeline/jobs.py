"""One job as its followers see it: a snapshot for polling, replayable events, live frames, cancel and wait.

`Job` is the shared state between the worker thread, which reports into it, and any number of readers. One
condition variable guards it; nothing slow happens under it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.errors import RequestError
from pipeline.events import (
    CancelledEvent,
    Event,
    Failed,
    Finished,
    FrameWritten,
    JobStatus,
    Phase,
    PhaseChanged,
    State,
    StepDone,
)
from pipeline.presets import SHOW_FRAMES, SHOW_HEIGHT, SHOW_WIDTH
from pipeline.progress import Progress
from pipeline.store import INTERRUPTED, JobFolder, Record

PHASES_PLAIN: tuple[Phase, ...] = ("load", "text", "denoise", "decode", "export")
PHASES_WITH_PREVIEW: tuple[Phase, ...] = ("load", "text", "preview", "denoise", "decode", "export")


class Job:
    """One job, running, waiting or over. Readers may call anything from any thread."""

    def __init__(self, folder: JobFolder, record: Record, fps: int = 0) -> None:
        self._folder = folder
        self._condition = threading.Condition()
        self._cancel = threading.Event()
        self._when_cancelled: Callable[[], None] = lambda: None
        self._events: list[Event] = []
        self._live: dict[int, tuple[int, bytes]] = {}
        self._progress = Progress(PHASES_PLAIN)
        self._started: float | None = None
        self._earlier = record.elapsed
        self.request = record.request
        self._status = _first_status(folder.id, record, fps)
        if self._status.over:
            with self._condition:
                self._add_last_event(record.state, record.message)

    @property
    def id(self) -> str:
        """The name of the job's folder."""
        return self._folder.id

    @property
    def folder(self) -> Path:
        return self._folder.path

    @property
    def frames_folder(self) -> Path:
        """Where the pictures are: preview/ of a preview, frames/ of a render."""
        return self._folder.frames(self.request.stage)

    @property
    def clip_path(self) -> Path:
        """Where the mp4 of a render is, once its status says `clip`."""
        return self._folder.clip

    def frame_path(self, index: int) -> Path:
        """The PNG of picture `index`, counted from 1; raises `RequestError` beyond the last one."""
        total = self._status.frames_total
        if not 1 <= index <= total:
            raise RequestError("frames", f"This video has frames 1 to {total}: there is no frame {index}.")
        return self._folder.frame(self.request.stage, index)

    def snapshot(self) -> JobStatus:
        """The status at this moment."""
        with self._condition:
            running = self._status.state == "running" and self._started is not None
            elapsed = self._earlier + (time.monotonic() - self._started if running else 0.0)
            return replace(
                self._status,
                elapsed_seconds=round(elapsed, 3),
                fraction=1.0 if self._status.state == "done" else self._progress.fraction(),
                eta_seconds=self._progress.eta() if running else None,
            )

    def follow(self, after: int = 0) -> Iterator[Event]:
        """Yield every event with a sequence number above `after`, waiting for more until the job is over."""
        while True:
            with self._condition:
                while len(self._events) <= after and not self._status.over:
                    self._condition.wait()
                fresh = self._events[after:]
                if not fresh:
                    return
            for event in fresh:
                yield event
                after = event.seq

    def wait(self, timeout: float | None = None) -> JobStatus:
        """Wait until the job is over, at most `timeout` seconds, and return the status then."""
        with self._condition:
            self._condition.wait_for(lambda: self._status.over, timeout)
        return self.snapshot()

    def cancel(self) -> None:
        """Ask the job to stop; it does within one transformer block or tile. Over jobs are left alone."""
        self._cancel.set()
        self._when_cancelled()

    @property
    def cancelled(self) -> bool:
        """True once `cancel` was called."""
        return self._cancel.is_set()

    def live(self, index: int) -> tuple[int, bytes] | None:
        """(revision, JPEG) of live frame `index`, counted from 0, or None before the first one."""
        with self._condition:
            return self._live.get(index)

    # What follows is the worker's side.

    def on_cancel(self, action: Callable[[], None]) -> None:
        """Call `action` once somebody cancels; the queue drops a waiting job this way."""
        self._when_cancelled = action

    def begin(self, phases: tuple[Phase, ...], expected: dict[str, float | None]) -> None:
        """The worker took the job up; `expected` holds the seconds of each phase where they are known."""
        with self._condition:
            self._started = time.monotonic()
            self._progress = Progress(phases, expected)
            self._update(state="running", phases=phases, phase=phases[0], phase_index=0)

    def expect_if_unknown(self, phase: Phase, seconds: float) -> None:
        """Estimate a later phase that no earlier job has measured."""
        with self._condition:
            self._progress.expect_if_unknown(phase, seconds)

    def enter(self, phase: Phase, message: str, done: float = 0.0) -> None:
        """The next phase begins, of which an earlier run may have done a part."""
        with self._condition:
            index = self._status.phases.index(phase)
            self._progress.begin(phase, done)
            self._update(phase=phase, phase_index=index, message=message, block=0, blocks=0)
            self._add(lambda seq: PhaseChanged(seq, phase, index))

    def advance(self, fraction: float, **changes: Any) -> None:
        """The current phase is `fraction` done; `changes` are fields of the status."""
        with self._condition:
            self._progress.advance(fraction)
            self._update(**changes)

    def step_done(self, stage: str, step: int, steps: int, seconds: float) -> None:
        with self._condition:
            self._update(step=step, steps=steps, message=f"Step {step} of {steps}.")
            self._add(lambda seq: StepDone(seq, stage, step, steps, seconds))

    def show_live(self, jpegs: list[bytes]) -> None:
        """Replace the live frames; only the latest of each index is kept."""
        with self._condition:
            revision = self._status.live_revision + 1
            self._live = {index: (revision, jpeg) for index, jpeg in enumerate(jpegs)}
            self._update(live_revision=revision, live_count=len(jpegs))

    def frame_written(self, index: int, path: Path) -> None:
        with self._condition:
            self._update(frames_written=index)
            self._add(lambda seq: FrameWritten(seq, index, str(path)))

    def describe(self, **changes: Any) -> None:
        """Change fields of the status that need no event."""
        with self._condition:
            self._update(**changes)

    def end(self, state: State, message: str) -> None:
        """The job is over; followers get their last event."""
        with self._condition:
            if self._started is not None:
                self._earlier += time.monotonic() - self._started
                self._started = None
            self._update(state=state, message=message)
            self._add_last_event(state, message)

    def elapsed(self) -> float:
        """Seconds of work so far, earlier runs included."""
        return self.snapshot().elapsed_seconds

    def _update(self, **changes: Any) -> None:
        self._status = replace(self._status, **changes)

    def _add(self, make: Callable[[int], Event]) -> None:
        seq = len(self._events) + 1
        self._events.append(make(seq))
        self._status = replace(self._status, seq=seq)
        self._condition.notify_all()

    def _add_last_event(self, state: State, message: str) -> None:
        kinds = {"done": Finished, "failed": Failed}
        kind = kinds.get(state, CancelledEvent)
        self._add(lambda seq: kind(seq, message))


def _first_status(job_id: str, record: Record, fps: int) -> JobStatus:
    """The status of a job nobody works on, from its record."""
    request = record.request
    preview = request.stage == "preview"
    done = record.state == "done"
    return JobStatus(
        id=job_id,
        stage=request.stage,
        state=record.state,
        phase="export" if done else "load",
        phase_index=len(PHASES_PLAIN) - 1 if done else 0,
        phases=PHASES_PLAIN,
        step=record.step,
        steps=record.steps or request.steps,
        block=0,
        blocks=0,
        fraction=0.0,
        eta_seconds=None,
        elapsed_seconds=record.elapsed,
        message=INTERRUPTED if record.state == "interrupted" else record.message,
        live_count=0,
        live_revision=0,
        frames_written=record.frames,
        frames_total=SHOW_FRAMES if preview else request.frames,
        width=SHOW_WIDTH if preview else request.width,
        height=SHOW_HEIGHT if preview else request.height,
        fps=int(record.plan.get("fps", fps)),
        clip=record.clip,
        seed=str(request.seed),
        seq=0,
        prompt=request.prompt,
        preset=request.preset,
        note=str(record.plan.get("note", "")),
    )
