"""The form: its fields in order, what a preset fills them with, and how their values become a `Request`.

All rules about values are `Request`'s own; this file only asks it, field by field, and words its answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline import FirstlookError, Preset, Request, RequestError, Studio
from ui.words import in_language, say

FIELDS = (
    "prompt",
    "negative_prompt",
    "preset",
    "seed",
    "steps",
    "guidance",
    "width",
    "height",
    "frames",
    "keep",
    "threads",
)
PRESET_FIELDS = ("steps", "guidance", "width", "height", "frames", "keep")
STAND_IN_PROMPT = "-"


def preset_values(preset: Preset) -> dict[str, Any]:
    """What choosing a preset writes into the form."""
    return {name: getattr(preset.render, name) for name in PRESET_FIELDS}


def request_values(request: Request) -> dict[str, Any]:
    """A request as the form shows it."""
    data = request.to_json()
    return {name: data[name] for name in FIELDS}


def to_request(values: Sequence[Any], stage: str, studio: Studio, source: str | None = None) -> Request:
    """The form's `values`, in the order of `FIELDS`, as a request; raises `RequestError`."""
    form = dict(zip(FIELDS, values, strict=True))
    preset = studio.presets.get(form["preset"])
    if preset is None:
        raise RequestError("preset", "Choose a preset.")
    if not preset.guidance_offered:
        form |= {"guidance": preset.render.guidance, "negative_prompt": ""}
    return Request.from_form({**form, "stage": stage, "source": source}, preset)


def problems(values: Sequence[Any], studio: Studio, language: str) -> dict[str, str]:
    """One sentence for each field that cannot be used, by field: all of them at once, not only the first."""
    values = list(values)
    found: dict[str, str] = {}
    while True:
        try:
            request = to_request(values, "render", studio)
            break
        except RequestError as error:
            if error.field not in FIELDS or error.field in found:
                return found | {"prompt": in_language(language, str(error))}
            found[error.field] = in_language(language, str(error))
            values[FIELDS.index(error.field)] = _stand_in(error.field, studio)
    if "preset" not in found:
        found |= _model_problems(request, studio, language)
    return found


def _stand_in(field: str, studio: Studio) -> Any:
    if field == "prompt":
        return STAND_IN_PROMPT
    return next(iter(studio.presets)) if field == "preset" else None


def _model_problems(request: Request, studio: Studio, language: str) -> dict[str, str]:
    try:
        preflight = studio.preflight(request)
    except RequestError as error:
        return {error.field if error.field in FIELDS else "preset": in_language(language, str(error))}
    except FirstlookError as error:
        return {"preset": in_language(language, str(error))}
    if not preflight.missing:
        return {}
    return {"preset": say(language, "error_missing", count=len(preflight.missing))}
