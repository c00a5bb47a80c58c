"""From a request to the stages that will run, before a model is loaded: shapes, steps, notes, disk space."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipeline.canvas import Canvas, ModelGeometry
from pipeline.canvas import plan as plan_canvas
from pipeline.errors import FirstlookError, RequestError
from pipeline.presets import Preset
from pipeline.request import Request
from pipeline.store import JobFolder, Record

if TYPE_CHECKING:
    from pipeline.models import Missing, ModelFiles

GENERATED_FILE = "generated.safetensors"
"""Beside a preview's four pictures: all its frames as generated, so that a render can start there."""
FIXED_BYTES = 32 << 20
BYTES_PER_PIXEL = 4
ASPECT_TOLERANCE = 0.1


@dataclass(frozen=True)
class StagePlan:
    """One stage that will run: what is generated, in how many steps, what is kept of a preview (0 none).

    `evaluations` are the steps that remain of the schedule once a kept preview has skipped its beginning.
    """

    name: Literal["preview", "render"]
    canvas: Canvas
    steps: int
    evaluations: int
    guidance: float
    keep: float

    def to_json(self) -> dict[str, Any]:
        """What decides the bytes of this stage, for job.json."""
        return asdict(self)


@dataclass(frozen=True)
class Source:
    """The preview a render starts from."""

    folder: JobFolder
    record: Record

    @property
    def generated(self) -> Path:
        return self.folder.frames("preview") / GENERATED_FILE


def plan_stages(
    request: Request, preset: Preset, files: ModelFiles, source: Source | None
) -> tuple[StagePlan, ...]:
    """The stages of a request, in order; the last one is the request's own.

    A preview has one stage, of the preset's shape and steps. A render that keeps a composition but has no
    preview to keep makes one first, where the preset says so. Raises `RequestError` for an impossible size.
    """
    if request.stage == "preview":
        return (_preview_stage(request, preset, files),)
    makes_own = source is None and preset.preview_first and request.keep > 0
    keep = request.keep if source is not None or makes_own else 0.0
    canvas = plan_canvas(request.width, request.height, request.frames, _geometry(files))
    evaluations = _evaluations(request.steps, files, keep)
    render = StagePlan("render", canvas, request.steps, evaluations, request.guidance, keep)
    return (_preview_stage(request, preset, files), render) if makes_own else (render,)


def find_source(request: Request, outputs: Path) -> Source | None:
    """The preview that `request.source` names; raises `RequestError` when it cannot be rendered from."""
    if request.source is None or request.stage == "preview":
        return None
    path = Path(request.source)
    folder = JobFolder(path if path.is_absolute() else outputs / path)
    try:
        source = Source(folder, folder.read())
    except FirstlookError as error:
        raise RequestError("source", f"The preview cannot be used: {error}") from error
    if not source.generated.is_file():
        raise RequestError("source", f"{folder.path} holds no finished preview to render from.")
    return source


def notes(
    request: Request, preset: Preset, stages: tuple[StagePlan, ...], source: Source | None
) -> tuple[str, ...]:
    """Sentences a person should read before the work begins."""
    stage = stages[-1]
    found = [stage.canvas.note] if request.stage == "render" else []
    found += [_guidance_note(request, preset), _trained_note(stage, preset)]
    if request.stage == "render":
        found += [_source_note(request, source), _aspect_note(stage, preset)]
    return tuple(note for note in found if note)


def bytes_needed(request: Request) -> int:
    """An upper estimate of what a job writes: frames, clip, latents twice, and room to spare."""
    return FIXED_BYTES + request.width * request.height * request.frames * BYTES_PER_PIXEL


def missing_sentence(preset: Preset, missing: Missing) -> str:
    """One sentence about one missing file: which, where it goes, where it comes from."""
    note = f" {missing.note}" if missing.note else ""
    return f"{preset.title} lacks its {missing.role}: put it at {missing.path}.{note}"


def _geometry(files: ModelFiles) -> ModelGeometry:
    """The model's own geometry; MiniMax-H3's while parts of the model are missing."""
    return ModelGeometry() if files.missing else files.geometry


def _evaluations(steps: int, files: ModelFiles, keep: float) -> int:
    from pipeline.sampler import schedule  # torch is slow to import, and --help does not need it

    return schedule(steps, files.shift, keep=keep).steps


def _preview_stage(request: Request, preset: Preset, files: ModelFiles) -> StagePlan:
    shape = preset.preview
    canvas = plan_canvas(shape.width, shape.height, shape.frames, _geometry(files))
    # The person's own guidance counts for both stages; the preset's may differ between them.
    changed = request.guidance != preset.render.guidance
    guidance = request.guidance if changed else shape.guidance
    return StagePlan("preview", canvas, shape.steps, _evaluations(shape.steps, files, 0.0), guidance, 0.0)


def _guidance_note(request: Request, preset: Preset) -> str:
    if not request.negative_prompt or request.guidance != 1.0:
        return ""
    if not preset.guidance_offered:
        return f"{preset.title} takes no guidance, so the negative prompt has no effect."
    return "At guidance 1 the negative prompt has no effect."


def _trained_note(stage: StagePlan, preset: Preset) -> str:
    trained, canvas = preset.trained, stage.canvas
    subject = f"{preset.title} was trained"
    if 0 < trained.width < canvas.width or 0 < trained.height < canvas.height:
        return f"{subject} up to {trained.width}×{trained.height}; larger pictures fall apart."
    if 0 < trained.max_frames < canvas.gen_frames:
        return f"{subject} up to {trained.max_frames} frames; longer videos may drift."
    if canvas.gen_frames < trained.min_frames:
        return f"{subject} on {trained.min_frames} frames and more; shorter videos are rougher."
    return ""


def _source_note(request: Request, source: Source | None) -> str:
    if source is None:
        return ""
    if request.keep == 0:
        return "Keep composition is 0, so the render starts from noise and may differ from its preview."
    if source.record.request.prompt != request.prompt:
        return "The prompt differs from the preview's; the render keeps the preview's composition."
    return ""


def _aspect_note(stage: StagePlan, preset: Preset) -> str:
    """The preview fills the render's canvas, so another shape of picture loses a margin of it."""
    if stage.keep == 0:
        return ""
    preview = preset.preview.width / preset.preview.height
    ratio = (stage.canvas.width / stage.canvas.height) / preview
    if abs(ratio - 1.0) <= ASPECT_TOLERANCE:
        return ""
    edges = "top and bottom" if ratio > 1 else "left and right"
    return f"The preview has another shape: its {edges} edges are cut off in this render."
