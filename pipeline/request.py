"""What the person wants: a validated, immutable `Request` that survives a round trip through JSON.

The wish is checked as wished: which shape a model makes for it is `canvas`'s rule, and a size off its
grid snaps. Seeds are unsigned 64-bit and travel through JSON as strings, since a browser's numbers lose
digits above 2**53.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from pipeline.errors import RequestError
from pipeline.limits import LIMITS, check_number, whole

if TYPE_CHECKING:
    from pipeline.presets import Preset

SEED_LIMIT = 2**64
PROMPT_LIMIT = 4000


@dataclass(frozen=True, kw_only=True)
class Request:
    """One wish. Width, height (pixels), frames and steps (evaluations) are those of the render.

    A preview carries them too, so that its render needs no second form; its own shape comes from the preset.
    `keep` is the timestep t in [0, 1) the enlarged preview is noised to: 0 starts from noise, larger keeps
    more. `threads` 0 lets the program choose. `source` names the preview this render starts from.
    """

    prompt: str
    seed: int
    width: int
    height: int
    frames: int
    steps: int
    guidance: float
    keep: float
    negative_prompt: str = ""
    preset: str = "firefly"
    stage: Literal["preview", "render"] = "render"
    threads: int = 0
    source: str | None = None

    @classmethod
    def from_form(cls, form: Mapping[str, Any], preset: Preset) -> Request:
        """Validate a form; empty or missing fields take the preset's values, an empty seed is drawn.

        Raises `RequestError` with the field's name. `source` must be a job's name: a form never names a path.
        """
        _refuse_unknown(form, form_fields())
        numbers = {name: check_number(name, _filled(form, name, _default(preset, name))) for name in LIMITS}
        if not preset.guidance_offered and numbers["guidance"] != 1:
            raise RequestError("guidance", f"{preset.title} takes no guidance: leave it at 1.")
        return cls(
            prompt=_prompt(form.get("prompt")),
            negative_prompt=_text("negative_prompt", form.get("negative_prompt")),
            preset=preset.name,
            stage=_stage(_filled(form, "stage", "render")),
            seed=_seed(form.get("seed")),
            source=_source(form.get("source")),
            **numbers,
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON-able dict; the seed is a string."""
        return asdict(self) | {"seed": str(self.seed)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Request:
        """The inverse of `to_json`; raises `RequestError` on anything missing, unknown or out of range."""
        if not isinstance(data, Mapping):
            raise RequestError("prompt", "A request is written as a JSON object.")
        _refuse_unknown(data, form_fields())
        missing = [f.name for f in fields(cls) if f.name not in data]
        if missing:
            raise RequestError(missing[0], f"The request lacks {', '.join(missing)}.")
        source = data["source"]
        if source is not None and not isinstance(source, str):
            raise RequestError("source", "The source of a render is the name of a preview.")
        return cls(
            prompt=_prompt(data["prompt"]),
            negative_prompt=_text("negative_prompt", data["negative_prompt"]),
            preset=_text("preset", data["preset"]),
            stage=_stage(data["stage"]),
            seed=_seed(data["seed"]),
            source=source,
            **{name: check_number(name, data[name]) for name in LIMITS},
        )


def draw_seed() -> int:
    """A seed from the system's randomness, below 2**32 so that a person can copy it by hand."""
    return secrets.randbelow(2**32)


def form_fields() -> frozenset[str]:
    """The names a form may carry."""
    return frozenset(f.name for f in fields(Request))


def _refuse_unknown(form: Mapping[str, Any], known: frozenset[str]) -> None:
    unknown = sorted(set(form) - known)
    if unknown:
        raise RequestError(unknown[0], f"A request has no field called {unknown[0]}.")


def _filled(form: Mapping[str, Any], name: str, default: Any) -> Any:
    value = form.get(name)
    return default if value is None or value == "" else value


def _default(preset: Preset, name: str) -> Any:
    return 0 if name == "threads" else getattr(preset.render, name)


def _prompt(value: Any) -> str:
    prompt = _text("prompt", value)
    if not prompt:
        raise RequestError("prompt", "The prompt is empty: say what the video should show.")
    return prompt


def _text(field: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RequestError(field, f"The field {field} takes text.")
    if any(0xD800 <= ord(letter) <= 0xDFFF for letter in value) or "\0" in value:
        raise RequestError(field, "The text contains characters that are not valid Unicode.")
    text = value.strip()
    if len(text) > PROMPT_LIMIT:
        raise RequestError(field, f"The text has {len(text)} characters; at most {PROMPT_LIMIT} are read.")
    return text


def _stage(value: Any) -> Literal["preview", "render"]:
    if value not in ("preview", "render"):
        raise RequestError("stage", "The stage is either preview or render.")
    return value


def _source(value: Any) -> str | None:
    source = _text("source", value)
    if not source:
        return None
    if source.startswith(".") or not all(letter.isalnum() or letter in "-_." for letter in source):
        raise RequestError("source", "The source of a render is the name of a preview in the outputs folder.")
    return source


def _seed(value: Any) -> int:
    if value is None or (isinstance(value, str) and value.strip() in ("", "-1")):
        return draw_seed()
    seed = whole(value)
    if seed == -1:
        return draw_seed()
    if seed is None or not 0 <= seed < SEED_LIMIT:
        text = "The seed is a whole number from 0 to 18446744073709551615 (64 bits), or empty to draw one."
        raise RequestError("seed", text)
    return seed
