"""From noise to latents: schedules, guidance, Euler steps.

The model predicts the velocity towards the data, at a timestep t = 1 - sigma where t = 0 is noise and t = 1
is clean. Steps are counted as evaluations of the model: N of them use a grid of N + 1 points that ends at
sigma = 0 (diffusers' `MiniMaxH3Scheduler` counts the points). Video and audio step along their own grids in
the same evaluation. Noise is drawn once, at the start; none is added again, so a run continued from the
latents of any step ends in the same bytes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pipeline.errors import EngineError
from pipeline.noise import audio_noise, noise
from pipeline.sequence import KEYFRAME_TIMESTEP, Sequence, keyframe_timestep, row_timesteps, unpatchify

__all__ = [
    "AUDIO_SHIFT",
    "VIDEO_SHIFT",
    "Branch",
    "Schedule",
    "Step",
    "Velocity",
    "audio_noise",
    "keyframe_rows",
    "noise",
    "noised",
    "sample",
    "schedule",
    "sigmas",
]

VIDEO_SHIFT, AUDIO_SHIFT = 12.0, 3.0
"""The shifts MiniMax-H3 was released with; a model's scheduler configuration overrides them."""

BlockProgress = Callable[[int, int], bool]
StepProgress = Callable[[int, int, int], bool]


class Velocity(Protocol):
    """What the sampler needs of an engine's run."""

    def velocity(
        self,
        video: Tensor,
        audio: Tensor | None,
        row_timesteps: Tensor,
        progress: BlockProgress | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Velocities of all video rows [Nv, Pv] and audio rows [Na, A], float32, for rows at their timesteps
        [S]."""
        ...


@dataclass(frozen=True)
class Branch:
    """One caption's side of guidance: a prepared run and the sequence it was prepared with."""

    run: Velocity
    sequence: Sequence


@dataclass(frozen=True)
class Schedule:
    """Falling noise levels of one run, [N + 1] float32 each, ending at 0; N evaluations."""

    video: Tensor
    audio: Tensor

    def __post_init__(self) -> None:
        if self.video.shape != self.audio.shape:
            raise ValueError(f"{len(self.video)} video noise levels beside {len(self.audio)} of the audio")

    @property
    def steps(self) -> int:
        """Evaluations of the model; twice as many forwards where guidance needs the second branch."""
        return len(self.video) - 1

    def timesteps(self, sequence: Sequence) -> list[float]:
        """Every value that `row_timesteps` will hold during the run, ascending: what an engine prepares
        for."""
        video = {_timestep(self.video, step) for step in range(self.steps)}
        audio = {_timestep(self.audio, step) for step in range(self.steps)}
        keyframes = {keyframe_timestep(value) for value in video}
        return sorted(
            video
            | (audio if sequence.audio_latents else set())
            | (keyframes if sequence.condition_rows else set())
        )

    def rows_at(self, step: int, sequence: Sequence) -> Tensor:
        """The timestep of every row at one evaluation, [S] float32."""
        return row_timesteps(sequence, _timestep(self.video, step), _timestep(self.audio, step))


@dataclass(frozen=True)
class Step:
    """What one evaluation made.

    `index` counts from 0, so a run is resumed with `start=index + 1`. `video` [N, P] and `audio` [2A,
    channels] (None without sound) are the rows after the step, at noise level `sigma`; `estimate` [C, T, h,
    w] is the model's guess of the finished latents. `seconds` is how long the evaluation took.
    """

    index: int
    steps: int
    video: Tensor
    audio: Tensor | None
    estimate: Tensor
    sigma: float
    seconds: float


def sigmas(steps: int, shift: float, start: float = 1.0) -> Tensor:
    """Noise levels for `steps` evaluations, float32 from `start` to 0: `s b / (1 + (s - 1) b)` over an even
    grid b.

    Neighbours that the shift makes equal in float32 are merged, as in diffusers, so a huge `steps` can give
    fewer.
    """
    if steps < 1 or shift <= 0 or not 0 < start <= 1:
        raise ValueError(f"no schedule has {steps} steps, shift {shift} and starts at noise level {start}")
    first = start / (shift - (shift - 1) * start)  # the b whose level is `start`; 1 for 1
    grid = torch.linspace(first, 0.0, steps + 1, dtype=torch.float32)
    levels = torch.unique_consecutive(shift * grid / (1 + (shift - 1) * grid))
    levels[0] = start
    return levels


def schedule(
    steps: int, shift: float = VIDEO_SHIFT, audio_shift: float = AUDIO_SHIFT, keep: float = 0.0
) -> Schedule:
    """The schedule of a run that starts from noise (`keep` 0) or from a picture noised to timestep `keep`.

    What is kept need not be made again: of `steps` evaluations, the part 1 - keep remains, rounded up
    (`Schedule.steps` says how many), spread from noise level 1 - keep to 0 under the same shift. (Only
    leaving out the levels above 1 - keep would leave a single evaluation for keep = 0.5 at shift 12: most of
    a shifted schedule lies near pure noise.) Sound has no preview and starts from noise, over as many
    evaluations.
    """
    if not 0.0 <= keep < 1.0:
        raise ValueError(f"keep must be at least 0 and below 1, got {keep}")
    left = max(1, math.ceil(steps * (1.0 - keep) - 1e-6))
    return Schedule(sigmas(left, shift, 1.0 - keep), sigmas(left, audio_shift))


def noised(clean: Tensor, field: Tensor, keep: float) -> Tensor:
    """Latents at timestep `keep` on the straight line from noise to `clean`: `t x0 + (1 - t) noise`."""
    return keep * clean + (1.0 - keep) * field


def keyframe_rows(clean: Tensor, field: Tensor) -> Tensor:
    """Rows of a keyframe as the model expects them, just short of clean; constant during a run."""
    return noised(clean, field, KEYFRAME_TIMESTEP)


def sample(
    conditional: Branch,
    plan: Schedule,
    video: Tensor,
    audio: Tensor | None = None,
    *,
    unconditional: Branch | None = None,
    guidance: float = 1.0,
    keyframes: Tensor | None = None,
    start: int = 0,
    progress: StepProgress | None = None,
) -> Iterator[Step]:
    """Run evaluations `start` to the end, yielding each one's `Step`.

    `video` [N, P] and `audio` [2A, channels] are the generated rows at the noise level of `start`;
    `keyframes` are the condition rows that go before them. With an `unconditional` branch and `guidance` s
    other than 1, the velocity is `v_u + s (v_c - v_u)`; otherwise the second forward is skipped.
    `progress(step, block, blocks)` is called as blocks finish, counted over both branches; returning True
    cancels.

    Raises Cancelled from within a forward, or EngineError when the latents stop being finite; the last
    yielded step remains good.
    """
    guided = unconditional is not None and guidance != 1.0
    branches = [conditional, unconditional] if guided else [conditional]
    for step in range(start, plan.steps):
        began = time.perf_counter()
        outputs = [
            _forward(branch, plan, step, video, audio, keyframes, _share(progress, step, i, len(branches)))
            for i, branch in enumerate(branches)
        ]
        velocity, audio_velocity = _guide(outputs, guidance) if guided else outputs[0]
        video, estimate = _euler(plan.video, step, video, velocity)
        if audio is not None:
            audio, _ = _euler(plan.audio, step, audio, audio_velocity)
        if not torch.isfinite(video).all() or (audio is not None and not torch.isfinite(audio).all()):
            raise EngineError(
                f"Step {step + 1} of {plan.steps} gave numbers that are not finite: the model may be damaged."
            )
        yield Step(
            index=step,
            steps=plan.steps,
            video=video,
            audio=audio,
            estimate=unpatchify(estimate, conditional.sequence.latent_shape, conditional.sequence.patch),
            sigma=plan.video[step + 1].item(),
            seconds=time.perf_counter() - began,
        )


def _timestep(levels: Tensor, step: int) -> float:
    return (1.0 - levels[step]).item()


def _share(progress: StepProgress | None, step: int, branch: int, branches: int) -> BlockProgress | None:
    if progress is None:
        return None

    def report(block: int, blocks: int) -> bool:
        return progress(step, branch * blocks + block, branches * blocks)

    return report


def _forward(
    branch: Branch,
    plan: Schedule,
    step: int,
    video: Tensor,
    audio: Tensor | None,
    keyframes: Tensor | None,
    progress: BlockProgress | None,
) -> tuple[Tensor, Tensor | None]:
    rows = video if keyframes is None else torch.cat([keyframes, video])
    velocity, audio_velocity = branch.run.velocity(
        rows, audio, plan.rows_at(step, branch.sequence), progress=progress
    )
    return velocity[branch.sequence.condition_rows :], audio_velocity


def _guide(outputs: list[tuple[Tensor, Tensor | None]], guidance: float) -> tuple[Tensor, Tensor | None]:
    (video, audio), (video_free, audio_free) = outputs
    guided = video_free + guidance * (video - video_free)
    if audio is None or audio_free is None:
        return guided, None
    return guided, audio_free + guidance * (audio - audio_free)


def _euler(levels: Tensor, step: int, rows: Tensor, velocity: Tensor) -> tuple[Tensor, Tensor]:
    """Rows after one step, and the estimate of the clean rows.

    Both come in the order of operations of diffusers' scheduler: the estimate uses the noise level recovered
    from the timestep, the step uses the grid's, and below 0.5 the two differ in the last float32 bit.
    """
    estimate = rows + (1.0 - (1.0 - levels[step])) * velocity
    ratio = levels[step + 1] / levels[step]
    return ratio * rows + (1.0 - ratio) * estimate, estimate
