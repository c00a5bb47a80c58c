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

from pipeline import Job, JobInfo, Studio
from ui.words import in_language

FRESH_SECONDS = 2.0


class Shelf:
    """A short-lived copy of `studio.jobs()`, and the JSON made of it in the language of who asks."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self.server = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._jobs: list[JobInfo] = []
        self._read_at = float("-inf")
        self._running: tuple[str, str] | None = None

    def state(self, language: str) -> dict[str, Any]:
        """What changes: small, since it is asked for several times a second."""
        current = self.studio.current()
        status = current.snapshot() if current else None
        running = (status.id, status.state) if status else None
        jobs = self.jobs(fresh=running != self._running)
        self._running = running
        return {
            "server": self.server,
            "job": in_words(status.to_json(), language) if status else None,
            "waiting": sum(info.state == "queued" and info.id != (status and status.id) for info in jobs),
            "latest": next((info.id for info in jobs if not info.broken), None),
            "revision": str(hash(tuple((info.id, info.state) for info in jobs)) & 0xFFFFFFFF),
        }

    def listing(self, limit: int, language: str) -> dict[str, Any]:
        """The newest `limit` jobs."""
        jobs = self.jobs(fresh=True)
        return {"jobs": [in_words(row(info), language) for info in jobs[:limit]], "total": len(jobs)}

    def thumbnail(self, job_id: str) -> Path | None:
        """The picture that stands for a job in the history."""
        return next((info.thumbnail for info in self.jobs() if info.id == job_id), None)

    def jobs(self, fresh: bool = False) -> list[JobInfo]:
        """Newest first; read again when asked to, or when the copy is old."""
        with self._lock:
            now = time.monotonic()
            if fresh or now - self._read_at > FRESH_SECONDS:
                self._jobs = self.studio.jobs()
                self._read_at = now
            return self._jobs


def whole(job: Job, language: str) -> dict[str, Any]:
    """One job, whole: its request's width is the wish, the status' is what comes out."""
    status = in_words(job.snapshot().to_json(), language)
    return status | {"request": job.request.to_json(), "folder": str(job.folder)}


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


def in_words(job: dict[str, Any], language: str) -> dict[str, Any]:
    """The same job, with the pipeline's sentence about it in `language`."""
    return job | {"message": in_language(language, job["message"])}
