"""Seconds a job will take, learned from the timings that earlier jobs of the same model left in job.json.

Denoising is scaled by multiply-adds: a pass over S rows costs `linear * S + quadratic * S**2` (matrices, and
attention), both coefficients recorded with each measurement. Decoding and exporting scale with pixels.
Where nothing was measured, the answer is None.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from pipeline.errors import FirstlookError
from pipeline.plan import StagePlan
from pipeline.store import list_folders

if TYPE_CHECKING:
    from pipeline.engine import EngineConfig

EXPORT_PIXELS_PER_SECOND = 4e6
"""PNG and H.264 together, on one ordinary core."""
LOOKED_AT = 60
USED = 5


@dataclass(frozen=True)
class Denoised:
    """Measured: `passes` forward passes over `rows` rows took `seconds`."""

    rows: int
    passes: int
    seconds: float
    linear: float
    quadratic: float

    def seconds_per_pass(self, rows: int) -> float:
        """What one pass over another number of rows would take at the same pace."""
        return self.seconds / self.passes * self._cost(rows) / self._cost(self.rows)

    def _cost(self, rows: int) -> float:
        return self.linear * rows + self.quadratic * rows * rows


@dataclass(frozen=True)
class Pixels:
    """Measured: `pixels` (width x height x frames) took `seconds`."""

    pixels: int
    seconds: float


@dataclass(frozen=True)
class Timings:
    """What one job measured. Phases it did not finish are None."""

    model: str
    threads: int
    load: float | None = None
    text: float | None = None
    denoised: tuple[Denoised, ...] = ()
    decoded: Pixels | None = None
    exported: Pixels | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Timings:
        """The inverse of `to_json`; raises `ValueError` or `TypeError` on anything else."""
        pixels = {key: Pixels(**data[key]) if data.get(key) else None for key in ("decoded", "exported")}
        denoised = tuple(Denoised(**entry) for entry in data.get("denoised", ()))
        rest = {key: value for key, value in data.items() if key != "phases"}
        return cls(**(rest | pixels | {"denoised": denoised}))


def history(outputs: Path) -> list[Timings]:
    """Timings of the latest jobs below `outputs`, newest first; unreadable ones are left out."""
    found = []
    for folder in islice(list_folders(outputs), LOOKED_AT):
        try:
            found.append(Timings.from_json(folder.read().timings))
        except (FirstlookError, TypeError, ValueError, KeyError):
            continue
    return found


def estimate_phases(
    stages: tuple[StagePlan, ...], measured: Iterable[Timings], model: str, threads: int
) -> dict[str, float | None]:
    """Expected seconds of each phase of a job; None where no job of this model and thread count tells."""
    alike = [entry for entry in measured if entry.model == model and entry.threads == threads]
    seconds = {
        "load": _typical(entry.load for entry in alike),
        "text": _typical(entry.text for entry in alike),
        "denoise": _denoise(stages[-1], alike),
        "decode": _pixels(generated_pixels(stages[-1]), (entry.decoded for entry in alike)),
        "export": _export(stages[-1], alike),
    }
    if len(stages) > 1:
        decode = _pixels(generated_pixels(stages[0]), (entry.decoded for entry in alike))
        seconds["preview"] = _sum(_denoise(stages[0], alike), decode)
    return seconds


def total_seconds(phases: dict[str, float | None]) -> float | None:
    """The sum, or None while a part is unknown."""
    return _sum(*phases.values())


def scaled(measured: Pixels | None, pixels: int) -> float | None:
    """Seconds for `pixels` at the pace of `measured`."""
    return measured.seconds / measured.pixels * pixels if measured and measured.pixels else None


def pass_cost(config: EngineConfig) -> tuple[float, float]:
    """(linear, quadratic) multiply-adds of a forward pass: for each row, and for each pair of rows."""
    inner = config.heads * config.head_width
    block = 4 * config.hidden * inner + 3 * config.hidden * config.feed_forward
    return float(config.blocks * block), float(config.blocks * 2 * inner)


def passes(stage: StagePlan) -> int:
    """Forward passes of a stage: two for each evaluation with guidance."""
    return stage.evaluations * (1 if stage.guidance == 1.0 else 2)


def generated_pixels(stage: StagePlan) -> int:
    """Pixels of all frames a stage decodes."""
    return stage.canvas.gen_width * stage.canvas.gen_height * stage.canvas.gen_frames


def shown_pixels(stage: StagePlan) -> int:
    """Pixels of all frames a render writes."""
    return stage.canvas.width * stage.canvas.height * stage.canvas.frames


def _denoise(stage: StagePlan, alike: list[Timings]) -> float | None:
    canvas = stage.canvas
    rows = canvas.rows + 2 * canvas.audio_latents
    runs = [run for entry in alike for run in entry.denoised if run.passes]
    # A run of like length says most: attention grows faster than the matrices, and caches fit or do not.
    runs.sort(key=lambda run: abs(run.rows - rows))
    pace = _typical(run.seconds_per_pass(rows) for run in runs[:USED])
    return None if pace is None else pace * passes(stage)


def _export(stage: StagePlan, alike: list[Timings]) -> float:
    """Known well enough without history: a small part of any job."""
    pixels = shown_pixels(stage)
    measured = _pixels(pixels, (entry.exported for entry in alike))
    return pixels / EXPORT_PIXELS_PER_SECOND if measured is None else measured


def _pixels(pixels: int, measured: Iterable[Pixels | None]) -> float | None:
    return _typical(scaled(entry, pixels) for entry in measured)


def _typical(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None][:USED]
    return median(known) if known else None


def _sum(*parts: float | None) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
