"""What the form as it stands would make and take, said while it is being filled in.

Asked for over a route of ours: a Gradio event would do, but each one takes the messages off all fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline import FirstlookError, Request, Studio
from ui import form
from ui.words import in_language

SHARED = ("prompt", "negative_prompt", "preset", "seed", "guidance")
"""What a preview and the render that starts from it have in common."""


def look_over(studio: Studio, filled: Mapping[str, Any], language: str) -> dict[str, Any]:
    """Seconds of both stages, notes, files that are missing, and the preview a render would start from.

    With a value that cannot be used, only one sentence about it. An empty prompt is not a problem yet.
    """
    values = [filled.get(field) for field in form.FIELDS]
    values[0] = values[0] or form.STAND_IN_PROMPT
    try:
        wish = form.to_request(values, "render", studio)
        render = studio.preflight(wish)
        preview = studio.preflight(form.to_request(values, "preview", studio))
    except FirstlookError as error:
        return {"problem": in_language(language, str(error))}
    folder = studio.presets[wish.preset].model
    return {
        "preview_seconds": preview.estimate_seconds,
        "render_seconds": render.estimate_seconds,
        "notes": [in_language(language, note) for note in render.notes],
        "missing": [
            {
                "role": in_language(language, file.role),
                "path": str(file.path),
                "note": in_language(language, file.note),
            }
            for file in render.missing
        ],
        "folder": str(folder),
        "source": preview_of(studio, wish),
        "keep": wish.keep > 0,
    }


def preview_of(studio: Studio, wish: Request) -> str | None:
    """The newest finished preview that a render of `wish` can start from."""
    for info in studio.jobs():
        seen = info.request
        if seen is not None and seen.stage == "preview" and info.state == "done" and _alike(seen, wish):
            return info.id
    return None


def _missing(file: Any, folder: Path, language: str) -> dict[str, str]:
    """A file the model lacks; its path as seen from the model's folder."""
    path = file.path.relative_to(folder) if file.path.is_relative_to(folder) else file.path
    return {
        "role": in_language(language, file.role),
        "path": str(path),
        "note": in_language(language, file.note),
    }


def _alike(seen: Request, wish: Request) -> bool:
    return all(getattr(seen, name) == getattr(wish, name) for name in SHARED)
