"""Live frames: a cheap decode of each step's estimate, as often as the time it costs allows."""

from __future__ import annotations

import time

from pipeline import export, frames
from pipeline.jobs import Job
from pipeline.plan import StagePlan
from pipeline.sampler import Step
from pipeline.workshop import Workshop

SHARE = 0.2
"""Part of the denoising time that looking may cost."""
RENDER_FRAMES, PREVIEW_FRAMES = 3, 4


class LiveView:
    """Decodes what a stage has so far. `cost` is the seconds of the latest decode, `seconds` of all."""

    def __init__(self, job: Job, workshop: Workshop, stage: StagePlan) -> None:
        self._job = job
        self._workshop = workshop
        self._stage = stage
        self._denoised = 0.0
        self.cost: float | None = None
        self.seconds = 0.0

    def offer(self, step: Step) -> None:
        """Show a step's estimate if it is the first, the last, or can be afforded."""
        self._denoised += step.seconds
        if not self._workshop.keeps_vae() or not self._is_affordable(step):
            return
        began = time.perf_counter()
        self._show(step)
        self.cost = time.perf_counter() - began
        self.seconds += self.cost

    def _is_affordable(self, step: Step) -> bool:
        if self.cost is None or step.index + 1 == step.steps:
            return True
        return self.seconds + self.cost <= SHARE * self._denoised

    def _show(self, step: Step) -> None:
        canvas = self._stage.canvas
        count = PREVIEW_FRAMES if self._stage.name == "preview" else RENDER_FRAMES
        decoded = self._workshop.vae().live(
            step.estimate, count, canvas.frames, lambda done, total: self._job.cancelled
        )
        self._job.show_live([export.jpeg(frame) for frame in frames.crop_sides(decoded, canvas)])
