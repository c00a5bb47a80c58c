"""Jobs on disk: the outputs folder is the database.

    2026-12-01-153012-shiba-in-the-rain-7f3a/
        job.json             the whole request, what was planned, model hashes, timings, state
        latents.safetensors  the latest state after every step
        preview/ frames/     0001.png ...
        clip.mp4

A folder whose job.json cannot be read is listed as broken, and is never overwritten nor deleted. While a
process works on a job it holds a lock on the folder's `.lock`; the system releases it however the process
ends, so "running" without a lock is a job that was interrupted.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pipeline.errors import FirstlookError
from pipeline.events import STATES, State
from pipeline.files import write_json
from pipeline.request import Request

RECORD_FILE = "job.json"
LATENTS_FILE = "latents.safetensors"
CLIP_FILE = "clip.mp4"
PREVIEW_FOLDER = "preview"
FRAMES_FOLDER = "frames"
LOCK_FILE = ".lock"
OWN_NAMES = (RECORD_FILE, LATENTS_FILE, FRAMES_FOLDER, PREVIEW_FOLDER)
FORMAT = 1
SLUG_LENGTH = 40
FALLBACK_SLUG = "video"
INTERRUPTED = "The program stopped before this was finished."


@dataclass(frozen=True)
class Record:
    """The contents of job.json. `plan`, `model`, `engine` and `timings` are plain JSON of `generation`.

    `model` has the hash of every file of the model, `engine` says which engine and kernels computed.
    """

    request: Request
    created: str
    state: State = "queued"
    message: str = ""
    elapsed: float = 0.0
    step: int = 0
    steps: int = 0
    frames: int = 0
    clip: bool = False
    plan: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT} | asdict(self) | {"request": self.request.to_json()}

    @classmethod
    def from_json(cls, data: Any) -> Record:
        """The inverse of `to_json`; raises `FirstlookError` on anything it does not understand."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise FirstlookError("it is not a job of this version of Firstlook")
        rest = {key: value for key, value in data.items() if key != "format"}
        known = {f.name: f.type for f in fields(cls)}
        if set(rest) != set(known):
            raise FirstlookError(f"its keys are wrong: {', '.join(sorted(set(rest) ^ set(known)))}")
        for name, kind in known.items():
            if not _fits(rest[name], str(kind)):
                raise FirstlookError(f"its value of {name} is wrong")
        return cls(**(rest | {"request": Request.from_json(rest["request"])}))


@dataclass(frozen=True)
class JobInfo:
    """One row of the history. A broken folder has `broken` set to the reason and `request` to None."""

    id: str
    folder: Path
    created: str = ""
    state: State = "interrupted"
    request: Request | None = None
    message: str = ""
    elapsed: float = 0.0
    step: int = 0
    steps: int = 0
    frames: int = 0
    thumbnail: Path | None = None
    clip: bool = False
    broken: str = ""

    @property
    def stage(self) -> str:
        return self.request.stage if self.request else ""

    @property
    def prompt(self) -> str:
        return self.request.prompt if self.request else ""


class JobFolder:
    """One job's folder: its paths, its record, its lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def latents(self) -> Path:
        return self.path / LATENTS_FILE

    @property
    def clip(self) -> Path:
        return self.path / CLIP_FILE

    def frames(self, stage: str) -> Path:
        """The folder of the pictures of a stage."""
        return self.path / (PREVIEW_FOLDER if stage == "preview" else FRAMES_FOLDER)

    def frame(self, stage: str, index: int) -> Path:
        """The path of picture `index`, counted from 1."""
        return self.frames(stage) / f"{index:04d}.png"

    def read(self) -> Record:
        """Read job.json; raises `FirstlookError` when it is missing or broken."""
        path = self.path / RECORD_FILE
        try:
            return Record.from_json(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise FirstlookError(f"{self.path} is not a job: it has no {RECORD_FILE}.") from None
        except (OSError, ValueError, RecursionError) as error:
            raise FirstlookError(f"{path} cannot be read ({error}): it is left as it is.") from error
        except FirstlookError as error:
            raise FirstlookError(f"{path} cannot be used ({error}): it is left as it is.") from error

    def write(self, record: Record) -> None:
        """Replace job.json; the caller holds the lock."""
        write_json(self.path / RECORD_FILE, record.to_json())

    def acquire(self) -> None:
        """Take the folder for this process; raises `FirstlookError` when another one works on it."""
        descriptor = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise FirstlookError(f"Another program is working on {self.path}: wait for it to end.") from error
        self._lock = descriptor

    def release(self) -> None:
        """Give the folder back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def is_worked_on(self) -> bool:
        """True while any process, this one included, holds the lock."""
        if self._lock is not None:
            return True
        try:
            descriptor = os.open(self.path / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def truth(self, record: Record) -> Record:
        """`record` with a state that says "queued" or "running" only while some process works on it."""
        if record.state in ("queued", "running") and not self.is_worked_on():
            return replace(record, state="interrupted", message=INTERRUPTED)
        return record

    def info(self) -> JobInfo:
        """One row of the history; never raises."""
        try:
            record = self.truth(self.read())
        except FirstlookError as error:
            return JobInfo(self.id, self.path, broken=str(error), message=str(error))
        return JobInfo(
            id=self.id,
            folder=self.path,
            created=record.created,
            state=record.state,
            request=record.request,
            message=record.message,
            elapsed=record.elapsed,
            step=record.step,
            steps=record.steps,
            frames=record.frames,
            thumbnail=self._thumbnail(record),
            clip=record.clip and self.clip.is_file(),
        )

    def _thumbnail(self, record: Record) -> Path | None:
        stages = ("preview",) if record.request.stage == "preview" else ("render", "preview")
        paths = [self.frame(stage, 1) for stage in stages]
        return next((path for path in paths if path.is_file()), None)


def new_record(request: Request) -> Record:
    """The record of a job that waits for its turn."""
    return Record(request=request, created=_now().isoformat(timespec="milliseconds"), message="Waiting.")


def create_folder(outputs: Path, request: Request) -> JobFolder:
    """Make a new folder below `outputs`, named by time, prompt and four random digits."""
    try:
        outputs.mkdir(parents=True, exist_ok=True)
        for _ in range(64):
            stamp = _now().astimezone().strftime("%Y-%m-%d-%H%M%S")
            path = outputs / f"{stamp}-{slug(request.prompt)}-{secrets.token_hex(2)}"
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                return JobFolder(path)
    except OSError as error:
        raise FirstlookError(f"The outputs folder {outputs} cannot be written: {error.strerror}.") from error
    raise FirstlookError(f"No free name for a job was found in {outputs}.")


def claim_folder(path: Path) -> JobFolder:
    """Make `path` itself a job's folder; raises `FirstlookError` unless it is new or empty."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise FirstlookError(f"The folder {path} is not empty: name a new or an empty one.")
    except OSError as error:
        raise FirstlookError(f"The folder {path} cannot be used: {error.strerror}.") from error
    return JobFolder(path)


def list_folders(outputs: Path) -> Iterator[JobFolder]:
    """The folders below `outputs` that are jobs or remains of jobs, newest name first."""
    if not outputs.is_dir():
        return
    for path in sorted(outputs.iterdir(), key=lambda entry: entry.name, reverse=True):
        if any((path / name).exists() for name in OWN_NAMES):
            yield JobFolder(path)


def slug(prompt: str) -> str:
    """The first ASCII words of a prompt, hyphenated; a prompt without any gives a fallback."""
    words = re.findall(r"[a-z0-9]+", prompt.lower())
    text = "-".join(words)
    if len(text) > SLUG_LENGTH:
        text = text[: SLUG_LENGTH + 1].rpartition("-")[0] or text[:SLUG_LENGTH]
    return text or FALLBACK_SLUG


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _fits(value: Any, annotation: str) -> bool:
    """Whether a JSON value may stand for a field of `Record` with this annotation."""
    if annotation == "State":
        return value in STATES
    if annotation == "Request" or annotation.startswith("dict"):
        return isinstance(value, dict)
    if isinstance(value, bool):
        return annotation == "bool"
    return isinstance(value, {"str": str, "float": (int, float), "int": int, "bool": bool}[annotation])
