"""From a request to frames on disk: Firstlook's pipeline. This is its public face; it imports no torch."""

from pipeline.errors import Cancelled, EngineError, FirstlookError, ModelError, RequestError
from pipeline.events import (
    CancelledEvent,
    Event,
    Failed,
    Finished,
    FrameWritten,
    JobStatus,
    PhaseChanged,
    StepDone,
)
from pipeline.jobs import Job
from pipeline.limits import LIMITS
from pipeline.presets import (
    ExpectedFile,
    Preset,
    Presets,
    Stage,
    find_preset,
    load_presets,
    user_presets_folder,
)
from pipeline.request import Request, draw_seed
from pipeline.store import JobInfo
from pipeline.studio import Preflight, Studio
from pipeline.version import VERSION

__version__ = VERSION

__all__ = [
    "LIMITS",
    "Cancelled",
    "CancelledEvent",
    "EngineError",
    "Event",
    "ExpectedFile",
    "Failed",
    "Finished",
    "FirstlookError",
    "FrameWritten",
    "Job",
    "JobInfo",
    "JobStatus",
    "ModelError",
    "PhaseChanged",
    "Preflight",
    "Preset",
    "Presets",
    "Request",
    "RequestError",
    "Stage",
    "StepDone",
    "Studio",
    "draw_seed",
    "find_preset",
    "load_presets",
    "user_presets_folder",
]
