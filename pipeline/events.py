"""What a job tells its followers: small frozen events with a sequence number, and a snapshot for polling.

Events are replayable: a second browser tab or a refreshed page starts at 0 and misses nothing. Progress
within a step (transformer blocks, tiles) moves only the snapshot, so the list of events stays short.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["queued", "running", "done", "failed", "cancelled", "interrupted"]
Phase = Literal["load", "text", "preview", "denoise", "decode", "export"]
STATES: tuple[State, ...] = ("queued", "running", "done", "failed", "cancelled", "interrupted")
OVER: frozenset[State] = frozenset({"done", "failed", "cancelled", "interrupted"})
"""States a job does not leave by itself; all but "done" may be resumed."""


@dataclass(frozen=True)
class Event:
    """Base of all events; `seq` counts from 1 within one job."""

    seq: int


@dataclass(frozen=True)
class PhaseChanged(Event):
    """Another part of the work began; `index` counts from 0 among the job's phases."""

    phase: Phase
    index: int


@dataclass(frozen=True)
class StepDone(Event):
    """One evaluation of `stage` is finished and saved; `step` counts from 1."""

    stage: Literal["preview", "render"]
    step: int
    steps: int
    seconds: float


@dataclass(frozen=True)
class FrameWritten(Event):
    """A PNG is complete on disk; `index` counts from 1."""

    index: int
    path: str


@dataclass(frozen=True)
class Finished(Event):
    """Everything is on disk."""

    message: str


@dataclass(frozen=True)
class Failed(Event):
    """The job stopped; `message` is one plain sentence. Finished steps are kept."""

    message: str


@dataclass(frozen=True)
class CancelledEvent(Event):
    """The person stopped the job, or the program closed; finished steps are kept."""

    message: str


@dataclass(frozen=True)
class JobStatus:
    """One moment of a job, ready for JSON.

    `step`/`steps` count evaluations of the stage being denoised, `block`/`blocks` transformer blocks within
    the step (both guidance passes). `fraction` runs from 0 to 1 over the whole job and never falls.
    `eta_seconds` is None while there is nothing to measure by. `width`, `height` and `frames_total` describe
    the pictures of `frames_folder`: of a preview 192x112 and 4. `live_revision` grows with every live frame.
    """

    id: str
    stage: Literal["preview", "render"]
    state: State
    phase: Phase
    phase_index: int
    phases: tuple[Phase, ...]
    step: int
    steps: int
    block: int
    blocks: int
    fraction: float
    eta_seconds: float | None
    elapsed_seconds: float
    message: str
    live_count: int
    live_revision: int
    frames_written: int
    frames_total: int
    width: int
    height: int
    fps: int
    clip: bool
    seed: str
    seq: int
    prompt: str = ""
    preset: str = ""
    note: str = ""

    @property
    def over(self) -> bool:
        """True in a state the job does not leave by itself."""
        return self.state in OVER

    def to_json(self) -> dict[str, Any]:
        """All fields by name; tuples become lists in JSON."""
        return asdict(self)
