"""What can go wrong, in words for a person.

The text of every `FirstlookError` is one plain sentence: what happened, which file or field it concerns,
what to do. Callers show it as it is; a traceback behind one of these is noise, any other exception is a
defect of ours.
"""

from __future__ import annotations


class FirstlookError(Exception):
    """One plain sentence, meant for a person."""


class RequestError(FirstlookError):
    """A wish that cannot be met. `field` names the field of `Request` it is about ("prompt", "width",
    ...)."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class ModelError(FirstlookError):
    """A model's files are missing, damaged, or of a kind that cannot be computed correctly."""


class EngineError(FirstlookError):
    """The engine could not be built or loaded, or a run of it stopped."""


class Cancelled(Exception):
    """The person asked to stop. Not a failure: what was finished before is kept."""
