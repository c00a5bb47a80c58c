"""Run it all: a queue, one worker thread, and the outputs folder behind them.

`Studio` is the face that the page, the command line and tests use. One job runs at a time, because two
renders on one processor finish later than one after the other. Models stay loaded between jobs of the same
preset. Nothing here imports torch: the worker does, when the first job starts.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import plan as planning
from pipeline.canvas import Canvas
from pipeline.errors import Cancelled, FirstlookError, ModelError, RequestError
from pipeline.estimate import estimate_phases, history, total_seconds
from pipeline.events import JobStatus, State
from pipeline.files import is_full_disk, require_space
from pipeline.jobs import Job
from pipeline.machine import choose_threads
from pipeline.presets import Preset, find_preset
from pipeline.request import Request
from pipeline.store import (
    INTERRUPTED,
    JobFolder,
    JobInfo,
    Record,
    claim_folder,
    create_folder,
    list_folders,
    new_record,
)

if TYPE_CHECKING:
    from pipeline.models import Missing
    from pipeline.workshop import Workshop

log = logging.getLogger(__name__)

QUEUE_LIMIT = 8
REMEMBERED = 32
CLOSE_SECONDS = 20.0
CANCELLED = "Cancelled; what was finished is kept."


@dataclass(frozen=True)
class Preflight:
    """What a request would become: its canvas, sentences worth showing, seconds if they can be known.

    `canvas` is that of the request's own stage. `missing` lists files the preset's model lacks; with any of
    them `submit` refuses the request.
    """

    canvas: Canvas
    notes: tuple[str, ...] = ()
    estimate_seconds: float | None = None
    missing: tuple[Missing, ...] = ()


@dataclass(eq=False)
class _Entry:
    """A job in the queue, with what the worker needs to run it."""

    job: Job
    folder: JobFolder
    record: Record
    preset: Preset
    closing: bool = field(default=False)


class Studio:
    """Accepts requests, runs them one at a time, and remembers them on disk."""

    def __init__(self, outputs: Path, presets: dict[str, Preset], threads: int = 0) -> None:
        self.outputs = Path(outputs).expanduser().absolute()
        self.presets = presets
        self._threads = threads
        self._condition = threading.Condition()
        self._queue: deque[_Entry] = deque()
        self._running: _Entry | None = None
        self._known: dict[str, Job] = {}
        self._infos: dict[Path, tuple[tuple[int, int], JobInfo]] = {}
        self._warm: Preset | None = None
        self._closed = False
        self._workshop: Workshop | None = None
        self._worker = threading.Thread(target=self._work, name="studio", daemon=True)
        self._worker.start()

    def preflight(self, request: Request) -> Preflight:
        """Check a request without starting it; raises `RequestError` or `ModelError`."""
        preset = find_preset(self.presets, request.preset)
        return self._preflight(request, preset)

    def submit(self, request: Request, folder: Path | None = None) -> Job:
        """Check a request, make its folder, and put it in the queue; returns at once.

        `folder` names a new or empty folder to be the job's own instead of one below the outputs folder.
        Raises `RequestError`, `ModelError`, or `FirstlookError` when the queue or the disk is full.
        """
        preset = find_preset(self.presets, request.preset)
        checked = self._preflight(request, preset)
        if checked.missing:
            raise ModelError(" ".join(planning.missing_sentence(preset, entry) for entry in checked.missing))
        with self._condition:
            self._check_room()
            place = folder.expanduser().absolute() if folder else None
            require_space(place or self.outputs, planning.bytes_needed(request))
            job_folder = claim_folder(place) if place else create_folder(self.outputs, request)
            return self._enqueue(job_folder, new_record(request), preset)

    def resume(self, job: str | Path) -> Job:
        """Continue a job that was interrupted, cancelled or failed, from its last finished step.

        `job` is its name below the outputs folder, or, as a `Path`, a job's folder anywhere.
        """
        with self._condition:
            folder = JobFolder(job.expanduser().absolute()) if isinstance(job, Path) else self._folder(job)
            known = self._known.get(folder.id)
            if known is not None and known.folder == folder.path and not known.snapshot().over:
                return known
            self._check_room()
            record = folder.truth(folder.read())
            if record.state == "done":
                raise FirstlookError(f"{folder.id} is finished: there is nothing to resume.")
            if record.state in ("queued", "running"):
                raise FirstlookError(f"Another program is working on {folder.id}: wait for it to end.")
            preset = find_preset(self.presets, record.request.preset)
            require_space(folder.path, planning.bytes_needed(record.request))
            return self._enqueue(folder, replace(record, state="queued", message="Waiting."), preset)

    def jobs(self) -> list[JobInfo]:
        """Every job of the outputs folder, newest first; broken ones too, described as such."""
        infos = [self._info(folder) for folder in list_folders(self.outputs)]
        return sorted(infos, key=lambda info: (info.created or info.id[:10], info.id), reverse=True)

    def job(self, job_id: str) -> Job:
        """The job with this name, from memory or from disk; raises `RequestError` when there is none."""
        with self._condition:
            if job_id in self._known:
                return self._known[job_id]
        folder = self._folder(job_id)
        record = folder.truth(folder.read())
        return Job(folder, record)

    def current(self) -> Job | None:
        """The job that runs now, else the next one in the queue, else None."""
        with self._condition:
            entry = self._running or (self._queue[0] if self._queue else None)
            return entry.job if entry else None

    def warm(self, preset: str) -> None:
        """Load a preset's models in the background, unless there is work to do already."""
        with self._condition:
            self._warm = find_preset(self.presets, preset)
            self._condition.notify_all()

    def close(self) -> None:
        """Stop the running job so that it can be resumed, leave the queue, end the worker."""
        with self._condition:
            self._closed = True
            waiting = list(self._queue)
            self._queue.clear()
            if self._running is not None:
                self._running.closing = True
                self._running.job.cancel()
            self._condition.notify_all()
        for entry in waiting:
            self._finish(entry, entry.record, "interrupted", INTERRUPTED)
        self._worker.join(CLOSE_SECONDS)

    def __enter__(self) -> Studio:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _preflight(self, request: Request, preset: Preset) -> Preflight:
        from pipeline import models

        source = planning.find_source(request, self.outputs)
        files = models.find(preset.model, preset.files)
        stages = planning.plan_stages(request, preset, files, source)
        threads = choose_threads(request.threads or self._threads)
        expected = estimate_phases(stages, history(self.outputs), str(preset.model), threads)
        if self._workshop is not None and self._workshop.is_warm():
            expected["load"] = 0.0
        return Preflight(
            canvas=stages[-1].canvas,
            notes=planning.notes(request, preset, stages, source),
            estimate_seconds=total_seconds(expected),
            missing=tuple(files.missing),
        )

    def _check_room(self) -> None:
        if self._closed:
            raise FirstlookError("The program is closing and takes no new work.")
        if len(self._queue) >= QUEUE_LIMIT:
            raise FirstlookError(f"{QUEUE_LIMIT} jobs are waiting: let one finish or cancel one first.")

    def _enqueue(self, folder: JobFolder, record: Record, preset: Preset) -> Job:
        """The caller holds the condition."""
        folder.acquire()
        try:
            folder.write(record)
        except OSError as error:
            folder.release()
            raise FirstlookError(_disk_sentence(error, folder.path)) from error
        job = Job(folder, record, preset.fps)
        entry = _Entry(job, folder, record, preset)
        job.on_cancel(lambda: self._drop(entry))
        self._forget()
        self._known[job.id] = job
        self._queue.append(entry)
        self._condition.notify_all()
        return job

    def _drop(self, entry: _Entry) -> None:
        """A job that still waits is cancelled at once; a running one stops by itself."""
        with self._condition:
            if entry not in self._queue:
                return
            self._queue.remove(entry)
        self._finish(entry, entry.record, "cancelled", CANCELLED)

    def _forget(self) -> None:
        """Let go of the oldest finished jobs in memory; the disk still has them."""
        over = [name for name, job in self._known.items() if job.snapshot().over]
        for name in over[: len(self._known) - REMEMBERED]:
            del self._known[name]

    def _folder(self, job_id: str) -> JobFolder:
        # Names come from a browser: one that could lead out of the outputs folder is nobody's job.
        if Path(job_id).name != job_id or job_id.startswith(".") or not (self.outputs / job_id).is_dir():
            raise RequestError("source", f"There is no job called {job_id} in {self.outputs}.")
        return JobFolder(self.outputs / job_id)

    def _info(self, folder: JobFolder) -> JobInfo:
        """The history's row, read again only when job.json changed or the job is alive."""
        try:
            stat = (folder.path / "job.json").stat()
        except OSError:
            return folder.info()
        key = (stat.st_mtime_ns, stat.st_size)
        cached = self._infos.get(folder.path)
        if cached and cached[0] == key and cached[1].state not in ("queued", "running"):
            return cached[1]
        info = folder.info()
        self._infos[folder.path] = (key, info)
        return info

    def _work(self) -> None:
        """The worker thread: one entry after the other until the studio closes."""
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._closed or self._queue or self._warm)
                if self._closed:
                    break
                entry = self._queue.popleft() if self._queue else None
                preset, self._warm = self._warm, None
                self._running = entry
            if entry is not None:
                self._run(entry)
            elif preset is not None:
                self._warm_up(preset)
            with self._condition:
                self._running = None
        if self._workshop is not None:
            self._workshop.close()

    def _open_workshop(self) -> Workshop:
        if self._workshop is None:
            from pipeline.workshop import Workshop

            self._workshop = Workshop()
        return self._workshop

    def _warm_up(self, preset: Preset) -> None:
        try:
            self._open_workshop().warm(preset, choose_threads(self._threads))
        except FirstlookError as error:
            log.info("Not loaded ahead of time: %s", error)
        except Exception:
            log.exception("Loading %s ahead of time failed", preset.name)

    def _run(self, entry: _Entry) -> None:
        record = entry.record
        try:
            if entry.job.cancelled:
                raise Cancelled
            from pipeline.generation import Generation

            generation = Generation(
                entry.job, entry.folder, record, entry.preset, self._open_workshop(), self.outputs,
                choose_threads(entry.job.request.threads or self._threads),
            )  # fmt: skip
            try:
                generation.run()
            finally:
                record = generation.record
            self._finish(entry, record, "done", generation.message)
        except Cancelled:
            if entry.closing:
                self._finish(entry, record, "interrupted", INTERRUPTED)
            else:
                self._finish(entry, record, "cancelled", CANCELLED)
        except FirstlookError as error:
            self._finish(entry, record, "failed", str(error))
        except OSError as error:
            log.info("Job %s failed", entry.job.id, exc_info=True)
            self._finish(entry, record, "failed", _disk_sentence(error, entry.folder.path))
        except MemoryError:
            self._finish(entry, record, "failed", "There is not enough memory: choose a smaller size.")
        except Exception as error:
            log.exception("Job %s failed", entry.job.id)
            self._finish(entry, record, "failed", f"The program met a defect of its own ({error!r}).")

    def _finish(self, entry: _Entry, record: Record, state: State, message: str) -> None:
        """Write the last state and tell the followers; a full disk must not keep them waiting."""
        elapsed = entry.job.elapsed()
        try:
            entry.folder.write(replace(record, state=state, message=message, elapsed=elapsed))
        except OSError:
            log.info("The state of %s could not be written", entry.job.id, exc_info=True)
        entry.folder.release()
        entry.job.end(state, message)


def _disk_sentence(error: OSError, folder: Path) -> str:
    if is_full_disk(error):
        return f"The disk of {folder} is full: free some space, then resume the job; finished steps are kept."
    place = error.filename or folder
    return f"{place} could not be read or written: {error.strerror or error}."


__all__ = ["Job", "JobInfo", "JobStatus", "Preflight", "Studio"]
