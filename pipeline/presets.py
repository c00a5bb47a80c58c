"""Named settings: the TOML files of presets/ and the person's own, read into `Preset`s.

A preset names a model folder, the shape and steps of its two stages, and the words the page shows. A
broken file is described in one sentence in `Presets.problems` and never hides the others. Unknown keys
are refused: a misspelt "guidence" that silently did nothing would cost somebody a night's render.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import FirstlookError, RequestError
from pipeline.limits import check_number

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

log = logging.getLogger(__name__)

BUNDLED = Path(__file__).resolve().parent.parent / "presets"
DEFAULT_PRESET = "firefly"
SHOW_WIDTH, SHOW_HEIGHT, SHOW_FRAMES = 192, 112, 4
"""Every preview is shown in this size and number of frames, whatever its model generates for it."""
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Stage:
    """Shape (pixels, frames) and settings of one stage; `steps` counts evaluations of the model."""

    width: int
    height: int
    frames: int
    steps: int
    guidance: float
    keep: float


@dataclass(frozen=True)
class ExpectedFile:
    """A file or folder the model needs: its role, its path in the model folder, and where it comes from."""

    role: str
    path: str
    note: str


@dataclass(frozen=True)
class Trained:
    """What the model was trained on: beyond it a video is made too, with a warning. 0 says nothing."""

    width: int = 0
    height: int = 0
    min_frames: int = 0
    max_frames: int = 0


@dataclass(frozen=True)
class Preset:
    """One TOML file. `preview` is what is *generated*; it is shown in 4 frames of 192x112."""

    name: str
    title: str
    title_zh: str
    description: str
    description_zh: str
    model: Path
    render: Stage
    preview: Stage
    fps: int
    guidance_offered: bool
    preview_first: bool
    examples: tuple[str, ...] = ()
    examples_zh: tuple[str, ...] = ()
    files: tuple[ExpectedFile, ...] = ()
    trained: Trained = field(default_factory=Trained)
    show_width: int = SHOW_WIDTH
    show_height: int = SHOW_HEIGHT
    show_frames: int = SHOW_FRAMES


class Presets(dict[str, Preset]):
    """Presets by name, the default first; `problems` has one sentence for each file that was not usable."""

    def __init__(self, presets: dict[str, Preset], problems: tuple[str, ...]) -> None:
        super().__init__(presets)
        self.problems = problems


def user_presets_folder() -> Path:
    """$FIRSTLOOK_PRESETS, or ~/.config/firstlook/presets; it need not exist."""
    chosen = os.environ.get("FIRSTLOOK_PRESETS")
    return Path(chosen).expanduser() if chosen else Path.home() / ".config" / "firstlook" / "presets"


def load_presets(user_folder: Path | None = None, bundled: Path = BUNDLED) -> Presets:
    """Read the bundled presets, then those of `user_folder` (by default `user_presets_folder()`)."""
    presets: dict[str, Preset] = {}
    problems: list[str] = []
    for path in _toml_files(bundled) + _toml_files(user_folder or user_presets_folder()):
        try:
            preset = read_preset(path)
            if preset.name in presets:
                raise FirstlookError(f"The preset file {path} has the name of another preset: rename it.")
            presets[preset.name] = preset
        except FirstlookError as error:
            log.warning("%s", error)
            problems.append(str(error))
    order = sorted(presets, key=lambda name: name != DEFAULT_PRESET)
    return Presets({name: presets[name] for name in order}, tuple(problems))


def find_preset(presets: dict[str, Preset], name: str) -> Preset:
    """The preset called `name`; raises `RequestError` that lists those there are."""
    if name not in presets:
        known = ", ".join(presets) or "none, as no preset file could be read"
        raise RequestError("preset", f"There is no preset called {name!r}: choose one of {known}.")
    return presets[name]


def read_preset(path: Path) -> Preset:
    """Read one TOML file; raises `FirstlookError` with one sentence that names the file and the key."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        return _preset(path, _Table(data, ""))
    except FirstlookError as error:
        raise FirstlookError(f"The preset file {path} cannot be used: {error}") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FirstlookError(f"The preset file {path} cannot be read: {error}.") from error


def _toml_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.toml")) if folder.is_dir() else []


def _preset(path: Path, table: _Table) -> Preset:
    if not NAME.fullmatch(path.stem):
        raise FirstlookError("name it with lower-case letters, digits, dots and hyphens only.")
    title = table.text("title")
    description = table.text("description", "")
    examples = table.texts("examples")
    render = _stage(table.table("render"), None)
    preset = Preset(
        name=path.stem,
        title=title,
        title_zh=table.text("title_zh", title),
        description=description,
        description_zh=table.text("description_zh", description),
        model=_model_folder(path, table.text("model")),
        render=render,
        preview=_stage(table.table("preview"), render),
        fps=table.whole("fps", 1, 120),
        guidance_offered=table.flag("guidance_offered", True),
        preview_first=table.flag("preview_first", False),
        examples=examples,
        examples_zh=table.texts("examples_zh") or examples,
        files=tuple(_expected_file(entry) for entry in table.tables("files")),
        trained=_trained(table.table("trained", optional=True)),
    )
    table.finish()
    if not preset.guidance_offered and (render.guidance != 1.0 or preset.preview.guidance != 1.0):
        raise FirstlookError("guidance_offered is false, so guidance must be 1.")
    return preset


def _stage(table: _Table, render: Stage | None) -> Stage:
    """[render], or [preview]: the latter inherits guidance, and has nothing to keep."""
    stage = Stage(
        width=table.number("width"),
        height=table.number("height"),
        frames=table.number("frames"),
        steps=table.number("steps"),
        guidance=table.number("guidance", render.guidance if render else None),
        keep=0.0 if render else table.number("keep", 0.0),
    )
    table.finish()
    return stage


def _trained(table: _Table) -> Trained:
    keys = ("width", "height", "min_frames", "max_frames")
    trained = Trained(*(table.whole(key, 0, 1 << 20, 0) for key in keys))
    table.finish()
    return trained


def _expected_file(table: _Table) -> ExpectedFile:
    entry = ExpectedFile(table.text("role"), table.text("path"), table.text("note", ""))
    table.finish()
    return entry


def _model_folder(toml: Path, model: str) -> Path:
    folder = Path(model).expanduser()
    return folder if folder.is_absolute() else toml.parent / folder


class _Table:
    """A TOML table that knows its place in the file and which of its keys nobody asked for."""

    def __init__(self, data: dict[str, Any], place: str) -> None:
        self._data = dict(data)
        self._place = place

    def text(self, key: str, default: str | None = None) -> str:
        return self._take(key, default, lambda v: isinstance(v, str) and bool(v.strip()), "text").strip()

    def flag(self, key: str, default: bool) -> bool:
        return self._take(key, default, lambda v: isinstance(v, bool), "true or false")

    def whole(self, key: str, low: int, high: int, default: int | None = None) -> int:
        kind = f"a whole number from {low} to {high}"
        return self._take(key, default, lambda v: type(v) is int and low <= v <= high, kind)

    def number(self, key: str, default: float | None = None) -> Any:
        """A number that a `Request` could carry under the same name, within the same limits."""
        value = self._take(key, default, lambda v: type(v) in (int, float), "a number")
        try:
            return check_number(key, value)
        except RequestError as error:
            raise FirstlookError(f"{self._place}{key}: {error}") from error

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(self._take(key, [], _all_text, "a list of texts"))

    def table(self, key: str, optional: bool = False) -> _Table:
        value = self._take(key, {} if optional else None, lambda v: isinstance(v, dict), "a table")
        return _Table(value, f"{self._place}{key}.")

    def tables(self, key: str) -> list[_Table]:
        value = self._take(key, [], _all_tables, "a list of tables")
        return [_Table(entry, f"{self._place}{key}[{i}].") for i, entry in enumerate(value)]

    def finish(self) -> None:
        if self._data:
            unknown = self._place + min(self._data)
            raise FirstlookError(f"the key {unknown} means nothing here: check its spelling.")

    def _take(self, key: str, default: Any, valid: Callable[[Any], bool], kind: str) -> Any:
        if key not in self._data:
            if default is None:
                raise FirstlookError(f"it lacks the key {self._place}{key} ({kind}).")
            return default
        value = self._data.pop(key)
        if not valid(value):
            raise FirstlookError(f"the key {self._place}{key} must be {kind}.")
        return value


def _all_text(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) and entry.strip() for entry in value)


def _all_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)
