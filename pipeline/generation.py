"""One job from its plan to frames on disk, phase by phase, saving after every step.

load -> text -> (preview ->) denoise -> decode -> export. A job that stopped anywhere goes on from the last
saved step and ends in the same bytes: noise is drawn from the seed, sampling has no state but its latents,
and nothing that is written depends on the time.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pipeline import export, frames, plan, sampler, sequence
from pipeline.errors import Cancelled, FirstlookError, ModelError
from pipeline.estimate import (
    Denoised,
    Pixels,
    Timings,
    estimate_phases,
    generated_pixels,
    history,
    pass_cost,
    shown_pixels,
)
from pipeline.events import Phase
from pipeline.jobs import PHASES_PLAIN, PHASES_WITH_PREVIEW, Job
from pipeline.latents import SamplerState, load_frames, load_state, save_frames, save_state
from pipeline.live import RENDER_FRAMES, LiveView
from pipeline.machine import require_memory
from pipeline.noise import audio_noise, noise
from pipeline.plan import StagePlan
from pipeline.presets import Preset
from pipeline.store import JobFolder, Record
from pipeline.text import Conditioning
from pipeline.version import VERSION
from pipeline.workshop import Workshop

log = logging.getLogger(__name__)

PREVIEW_DENOISE_SHARE = 0.85
"""Part of the "preview" phase of a render that is denoising; the rest is decoding and enlarging."""


class Generation:
    """Runs one job. `record` is always what job.json should say; `message` describes the result."""

    def __init__(
        self,
        job: Job,
        folder: JobFolder,
        record: Record,
        preset: Preset,
        workshop: Workshop,
        outputs: Path,
        threads: int,
    ) -> None:
        self.record = record
        self.message = ""
        self._job = job
        self._folder = folder
        self._request = record.request
        self._preset = preset
        self._workshop = workshop
        self._outputs = outputs
        self._timings = Timings(str(preset.model), threads)
        self._threads = threads
        self._phase: Phase | None = None
        self._phase_began = 0.0
        self._seconds: dict[str, float] = dict(record.timings.get("phases", {}))
        self._seconds_writing = 0.0

    def run(self) -> None:
        """Do the whole job; raises `Cancelled`, `FirstlookError` or `OSError`, all finished steps kept."""
        self._load()
        self._read_prompts()
        if len(self._stages) > 1:
            self._enter("preview", "Making the preview to keep.", self._saved_share("preview"))
            self._make_own_preview()
        self._enter("denoise", "Denoising.", self._saved_share(self._stage.name))
        latents = self._denoise(self._stage, self._start_frames(), lambda done: done)
        self._enter("decode", "Decoding the frames.")
        if self._stage.name == "preview":
            generated = self._decode(self._stage, latents, lambda done: done)
            self._enter("export", "Writing the preview.")
            self._write_preview(self._stage, generated)
        else:
            self._decode_to_files(latents)
            self._enter("export", "Writing the clip.")
            self._write_clip()
        self._workshop.rest_vae()
        self._close_phase()
        self._save(clip=self._folder.clip.is_file())

    @property
    def _stage(self) -> StagePlan:
        """The stage the job is for; a render's own preview comes before it."""
        return self._stages[-1]

    # Loading and reading

    def _load(self) -> None:
        began = time.perf_counter()
        was_warm = self._workshop.is_warm()
        self._files = self._workshop.use(self._preset, self._threads)
        self._source = plan.find_source(self._request, self._outputs)
        self._stages = plan.plan_stages(self._request, self._preset, self._files, self._source)
        self._state = load_state(self._folder.latents)
        model = str(self._preset.model)
        expected = estimate_phases(self._stages, history(self._outputs), model, self._threads)
        phases = PHASES_WITH_PREVIEW if len(self._stages) > 1 else PHASES_PLAIN
        self._job.begin(phases, expected | ({"load": 0.0} if was_warm else {}))
        self._enter("load", "Loading the model.")
        self._job.describe(note=self._note(), steps=self._stage.evaluations)
        self._model = self._workshop.denoiser()
        self._check_unchanged()
        self._check_cancelled()
        if not was_warm:
            self._timings = replace(self._timings, load=time.perf_counter() - began)

    def _note(self) -> str:
        return " ".join(plan.notes(self._request, self._preset, self._stages, self._source))

    def _check_unchanged(self) -> None:
        """Record what decides the bytes; a job that is resumed must find the same again."""
        stages = [stage.to_json() for stage in self._stages]
        described = {"stages": stages, "fps": self._preset.fps, "note": self._note()}
        described = json.loads(json.dumps(described))
        hashes = dict(self._files.hashes())
        if self._state is not None and self.record.model and self.record.model != hashes:
            raise ModelError(f"The files of {self._preset.title} changed since then: start this job anew.")
        if self._state is not None and self.record.plan and self.record.plan["stages"] != described["stages"]:
            raise FirstlookError(f"The preset {self._preset.name} changed since then: start this job anew.")
        facts = self._model.describe()
        if facts["note"]:
            self._job.describe(note=f"{self._note()} {facts['note']}".strip())
        self._save(plan=described, model=hashes, engine=facts, state="running", message="")

    def _read_prompts(self) -> None:
        began = time.perf_counter()
        self._enter("text", "Reading the prompt.")
        self._caption = self._workshop.caption(self._request.prompt)
        self._job.advance(0.5)
        self._check_cancelled()
        guided = any(stage.guidance != 1.0 for stage in self._stages)
        self._free_caption = self._workshop.caption(self._request.negative_prompt) if guided else None
        self._workshop.rest_encoder()
        self._check_cancelled()
        self._timings = replace(self._timings, text=time.perf_counter() - began)

    # Denoising

    def _make_own_preview(self) -> None:
        stage = self._stages[0]
        if self._saved("render") is not None:
            return
        latents = self._denoise(stage, None, lambda done: done * PREVIEW_DENOISE_SHARE)
        rest = 1.0 - PREVIEW_DENOISE_SHARE
        self._write_preview(stage, self._decode(stage, latents, lambda done: 1.0 - rest * (1.0 - done)))

    def _start_frames(self) -> np.ndarray | None:
        """The preview in the render's shape, or None to start from noise or from a saved step."""
        if self._stage.keep == 0 or self._saved(self._stage.name) is not None:
            return None
        own = self._folder.frames("preview") / plan.GENERATED_FILE
        preview = load_frames(self._source.generated if self._source is not None else own)
        return frames.enlarge(preview, self._stage.canvas)

    def _denoise(
        self, stage: StagePlan, start: np.ndarray | None, share: Callable[[float], float]
    ) -> Tensor:
        """Final latents [C, T, h, w] of a stage, from a saved step, the frames of a preview, or noise."""
        canvas, patch = stage.canvas, self._files.geometry.patch
        schedule = sampler.schedule(
            stage.steps, self._files.shift, self._files.audio_shift, keep=stage.keep
        )
        state = self._saved(stage.name) or self._first_state(stage, schedule.steps, start)
        if state.step < schedule.steps:
            state = self._sample(stage, schedule, state, share)
        return sequence.unpatchify(state.video, canvas.latent_shape, patch)

    def _first_state(self, stage: StagePlan, steps: int, start: np.ndarray | None) -> SamplerState:
        canvas, geometry = stage.canvas, self._files.geometry
        latents = noise(self._request.seed, (geometry.latent_channels, *canvas.latent_shape))
        if start is not None:
            clean = self._workshop.vae().encode(start, self._is_cancelled)
            latents = sampler.noised(clean, latents, stage.keep)
        audio = None
        if canvas.audio_latents:
            audio = audio_noise(self._request.seed, canvas.audio_latents, geometry.audio_channels)
        return SamplerState(stage.name, 0, steps, sequence.patchify(latents, geometry.patch), audio)

    def _sample(
        self,
        stage: StagePlan,
        schedule: sampler.Schedule,
        state: SamplerState,
        share: Callable[[float], float],
    ) -> SamplerState:
        live = LiveView(self._job, self._workshop, stage)
        first, spent = state.step, 0.0
        with ExitStack() as stack:
            prepared = [self._branch(stage, schedule, caption) for caption in self._captions(stage)]
            branches = [stack.enter_context(branch) for branch in prepared]
            for step in sampler.sample(
                branches[0],
                schedule,
                state.video,
                state.audio,
                unconditional=branches[1] if len(branches) > 1 else None,
                guidance=stage.guidance,
                start=state.step,
                progress=self._block_progress(schedule.steps, share),
            ):
                state = SamplerState(stage.name, step.index + 1, step.steps, step.video, step.audio)
                spent += step.seconds
                self._keep_step(state, step.seconds)
                live.offer(step)
                self._expect_decode(live)
        self._learn_denoised(branches, state.step - first, spent)
        return state

    def _captions(self, stage: StagePlan) -> list[Conditioning]:
        if stage.guidance == 1.0 or self._free_caption is None:
            return [self._caption]
        return [self._caption, self._free_caption]

    @contextmanager
    def _branch(
        self, stage: StagePlan, schedule: sampler.Schedule, caption: Conditioning
    ) -> Iterator[sampler.Branch]:
        """One side of guidance; its layout is its own, because captions differ in length."""
        canvas = stage.canvas
        patch = self._files.geometry.patch
        layout = sequence.pack(caption.tags, canvas.latent_shape, patch, canvas.audio_latents)
        times = schedule.timesteps(layout)
        needed = self._model.memory(layout.rows, layout.text_rows, len(times))
        require_memory(needed, "Denoising at this size")
        with self._model.prepare(layout, caption.rows, times, self._is_cancelled) as run:
            yield sampler.Branch(run, layout)

    def _block_progress(self, steps: int, share: Callable[[float], float]) -> sampler.StepProgress:
        def report(step: int, block: int, blocks: int) -> bool:
            done = (step + block / max(blocks, 1)) / steps
            self._job.advance(share(done), block=block, blocks=blocks, step=step, steps=steps)
            return self._job.cancelled

        return report

    def _keep_step(self, state: SamplerState, seconds: float) -> None:
        save_state(self._folder.latents, state)
        self._state = state
        self._save(step=state.step, steps=state.steps)
        self._job.step_done(state.stage, state.step, state.steps, seconds)

    def _saved(self, stage: str) -> SamplerState | None:
        return self._state if self._state is not None and self._state.stage == stage else None

    def _saved_share(self, stage: str) -> float:
        """How much of a stage's denoising an earlier run has done, for the progress bar."""
        state = self._saved(stage)
        return state.step / state.steps if state else 0.0

    # Decoding and writing

    def _decode(self, stage: StagePlan, latents: Tensor, share: Callable[[float], float]) -> np.ndarray:
        """All generated frames, uint8 [F, H, W, 3]."""
        return np.concatenate(list(self._decoded(stage, latents, share)))

    def _decoded(
        self, stage: StagePlan, latents: Tensor, share: Callable[[float], float]
    ) -> Iterator[np.ndarray]:
        """Generated frames, piece by piece as they become final."""
        vae = self._workshop.vae()
        began = time.perf_counter()

        def report(done: int, total: int) -> bool:
            self._job.advance(share(done / total), block=done, blocks=total)
            return self._job.cancelled

        yield from vae.pieces(latents, report)
        self._check_cancelled()
        measured = Pixels(generated_pixels(stage), time.perf_counter() - began)
        self._timings = replace(self._timings, decoded=measured)

    def _write_preview(self, stage: StagePlan, generated: np.ndarray) -> None:
        """The four pictures that are shown, and every generated frame for the render that may follow."""
        preset, folder = self._preset, self._folder.frames("preview")
        size = preset.show_width, preset.show_height
        shown = frames.show(generated, stage.canvas, *size, preset.show_frames)
        folder.mkdir(exist_ok=True)
        own = stage is self._stage
        for index, frame in enumerate(shown, start=1):
            path = self._folder.frame("preview", index)
            export.write_png(path, frame, self._metadata(index))
            if own:
                self._job.frame_written(index, path)
        self._job.show_live([export.jpeg(frame) for frame in shown])
        # Written last: it is what says that the preview is complete.
        save_frames(folder / plan.GENERATED_FILE, generated[: stage.canvas.frames])
        if own:
            self._save(frames=len(shown))
            self.message = f"The preview is in {folder}."

    def _decode_to_files(self, latents: Tensor) -> None:
        """Write each frame as soon as it is final, so that a long decode can be watched and loses nothing."""
        canvas, folder = self._stage.canvas, self._folder.frames("render")
        folder.mkdir(exist_ok=True)
        written, spent = 0, 0.0
        for piece in self._decoded(self._stage, latents, lambda done: done):
            began = time.perf_counter()
            for frame in frames.crop_sides(piece, canvas)[: canvas.frames - written]:
                written += 1
                path = self._folder.frame("render", written)
                export.write_png(path, frame, self._metadata(written))
                self._job.frame_written(written, path)
            self._save(frames=written)
            spent += time.perf_counter() - began
        self._seconds_writing = spent
        self.message = f"{written} frames are in {folder}."

    def _write_clip(self) -> None:
        """The mp4, made from the PNGs. Without it the render is still whole, so its failure is only told."""
        began = time.perf_counter()
        canvas = self._stage.canvas
        paths = [self._folder.frame("render", index) for index in range(1, canvas.frames + 1)]
        try:
            export.write_mp4(
                self._folder.clip,
                map(export.read_png, paths),
                (canvas.width, canvas.height),
                self._preset.fps,
                self._request.prompt,
                self._settings(),
            )
            self._job.describe(clip=True)
        except FirstlookError as error:
            log.warning("%s", error)
            self.message = str(error)
        measured = Pixels(shown_pixels(self._stage), self._seconds_writing + time.perf_counter() - began)
        self._timings = replace(self._timings, exported=measured)

    def _metadata(self, index: int) -> dict[str, str]:
        settings = self._settings() | {"frame": index}
        software = f"Firstlook {VERSION}"
        return export.png_metadata(self._request.prompt, self._request.seed, settings, software)

    def _settings(self) -> dict[str, Any]:
        """Everything that decides the pictures. Threads do not, and no time may be in it."""
        request = self._request.to_json()
        chosen = {name: request[name] for name in request if name not in ("threads", "source")}
        stages = self.record.plan["stages"]
        return {"version": VERSION, "request": chosen, "stages": stages, "model": self.record.model}

    # The record, and what it teaches

    def _enter(self, phase: Phase, message: str, done: float = 0.0) -> None:
        self._close_phase()
        self._phase, self._phase_began = phase, time.perf_counter()
        self._job.enter(phase, message, done)

    def _close_phase(self) -> None:
        """Add the time of the phase that ends to its total, earlier runs included."""
        if self._phase is not None:
            seconds = self._seconds.get(self._phase, 0.0) + time.perf_counter() - self._phase_began
            self._seconds[self._phase] = round(seconds, 4)
        self._phase = None

    def _save(self, **changes: Any) -> None:
        timings = self._timings.to_json() | {"phases": self._seconds}
        self.record = replace(self.record, elapsed=self._job.elapsed(), timings=timings, **changes)
        self._folder.write(self.record)

    def _learn_denoised(self, branches: list[sampler.Branch], evaluations: int, seconds: float) -> None:
        rows = sum(branch.sequence.rows for branch in branches) // len(branches)
        linear, quadratic = pass_cost(self._model.config)
        count = evaluations * len(branches)
        if count:
            measured = Denoised(rows, count, round(seconds, 4), linear, quadratic)
            self._timings = replace(self._timings, denoised=(*self._timings.denoised, measured))

    def _expect_decode(self, live: LiveView) -> None:
        """Nothing is known of decoding before a model's first job, but a live decode is a measurement."""
        if live.cost is not None:
            chunks = self._files.geometry.chunks(self._stage.canvas.gen_frames)
            self._job.expect_if_unknown("decode", live.cost * max(1.0, chunks / RENDER_FRAMES))

    def _is_cancelled(self, done: int, total: int) -> bool:
        """A progress callback for work too short to show."""
        return self._job.cancelled

    def _check_cancelled(self) -> None:
        if self._job.cancelled:
            raise Cancelled
