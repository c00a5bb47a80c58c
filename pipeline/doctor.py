"""What this computer and this installation can do: `python -m pipeline doctor`."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

from pipeline import models
from pipeline.errors import FirstlookError
from pipeline.files import free_bytes
from pipeline.machine import GIBIBYTE, memory_bytes, physical_cores, processor_name
from pipeline.plan import missing_sentence
from pipeline.presets import DEFAULT_PRESET, Preset, Presets
from pipeline.version import VERSION


def report(presets: Presets, outputs: Path) -> tuple[list[str], bool]:
    """Lines to show, and whether the default preset can run."""
    lines = [f"Firstlook   {VERSION}, Python {platform.python_version()}, {platform.system()}"]
    lines += list(_machine(outputs))
    engine_line, engine_works = _engine()
    lines.append(engine_line)
    lines.append(f"mp4         {_ffmpeg()}")
    states = {preset.name: _model(preset) for preset in presets.values()}
    for name, problems in states.items():
        lines.append(f"preset      {name}: {'ready' if not problems else 'not ready'}")
        lines += [f"            {problem}" for problem in problems]
    lines += [f"preset      {problem}" for problem in presets.problems]
    return lines, engine_works and not states.get(DEFAULT_PRESET, ["missing"])


def _machine(outputs: Path) -> Iterator[str]:
    installed, available = memory_bytes()
    yield f"processor   {processor_name()} ({platform.machine()}), {physical_cores()} cores used by default"
    yield f"memory      {installed / GIBIBYTE:.1f} GiB, {available / GIBIBYTE:.1f} GiB free"
    yield f"outputs     {outputs}, {free_bytes(outputs) / GIBIBYTE:.1f} GiB free"


def _engine() -> tuple[str, bool]:
    from pipeline import engine

    try:
        facts = engine.describe()
    except FirstlookError as error:
        return f"engine      {error}", False
    return "engine      " + ", ".join(f"{name} {value}" for name, value in facts.items() if value), True


def _ffmpeg() -> str:
    import imageio_ffmpeg

    try:
        return f"ffmpeg {imageio_ffmpeg.get_ffmpeg_version()}"
    except RuntimeError:
        return "no ffmpeg was found: renders give PNG frames only"


def _model(preset: Preset) -> list[str]:
    """One sentence for each thing that keeps a preset from running."""
    try:
        files = models.find(preset.model, preset.files)
        if files.missing:
            return [missing_sentence(preset, entry) for entry in files.missing]
        _ = files.geometry
    except FirstlookError as error:
        return [str(error)]
    return []
