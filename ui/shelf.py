"""Jobs as the page's modules see them: the running one, and those in the outputs folder.

Every open tab asks several times a second, so the folder is read at most once in `FRESH_SECONDS`, or when the
running job has changed its state.
"""

from __future__ import annotations

import secrets
import threading
import time
from pathlib import Path
from typing import Any

from pipeline import Job, JobInfo, JobStatus, Studio

FRESH_SECONDS = 2.0
UNFINISHED = ("queued", "running")


class Shelf:
    """A short-lived copy of `studio.jobs()` and the JSON made of it."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self.server = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._jobs: list[JobInfo] = []
        self._read_at = float("-inf")
        self._seen: tuple[str, str] | None = None

    def state(self) -> dict[str, Any]:
        """What changes: small, since it is asked for several times a second."""
        current = self.studio.current()
        status = current.snapshot() if current else None
        jobs = self.jobs(status)
        return {
            "server": self.server,
            "job": status.to_json() if status else None,
            "waiting": sum(info.state == "queued" and info.id != (status and status.id) for info in jobs),
            "latest": next((info.id for info in jobs if not info.broken), None),
            "revision": str(hash(tuple((info.id, info.state) for info in jobs)) & 0xFFFFFFFF),
        }

    def listing(self, limit: int) -> dict[str, Any]:
        """The newest `limit` jobs."""
        jobs = self.jobs(None, fresh=True)
        return {"jobs": [row(info) for info in jobs[:limit]], "total": len(jobs)}

    def thumbnail(self, job_id: str) -> Path | None:
        """The picture that stands for a job in the history."""
        return next((info.thumbnail for info in self.jobs(None) if info.id == job_id), None)

    def describe(self, job: Job) -> dict[str, Any]:
        """One job, whole: its request's width is the wish, the status' is what comes out."""
        return job.snapshot().to_json() | {"request": job.request.to_json(), "folder": str(job.folder)}

    def jobs(self, status: JobStatus | None, fresh: bool = False) -> list[JobInfo]:
        """Newest first, read again when that may matter."""
        seen = (status.id, status.state) if status else None
        with self._lock:
            now = time.monotonic()
            changed = status is not None and seen != self._seen
            if fresh or changed or now - self._read_at > FRESH_SECONDS:
                self._jobs = self.studio.jobs()
                self._seen, self._read_at = seen, now
            return self._jobs


def row(info: JobInfo) -> dict[str, Any]:
    """One row of the history; `request` is null where job.json is damaged."""
    return {
        "id": info.id,
        "state": "broken" if info.broken else info.state,
        "stage": info.stage,
        "prompt": info.prompt,
        "created": info.created,
        "message": info.broken or info.message,
        "step": info.step,
        "steps": info.steps,
        "frames": info.frames,
        "picture": info.thumbnail is not None,
        "clip": info.clip,
        "request": info.request.to_json() if info.request else None,
    }
