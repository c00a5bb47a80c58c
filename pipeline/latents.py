"""Arrays of a job on disk, in safetensors files that are complete or absent: the sampler's state, and the
frames a preview was made of.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
import safetensors.torch
from torch import Tensor

from pipeline.errors import FirstlookError
from pipeline.files import write_bytes

VIDEO, AUDIO, FRAMES, STATE = "video", "audio", "frames", "state"


@dataclass(frozen=True)
class SamplerState:
    """The sampler's state after `step` of `steps` evaluations of `stage`.

    `video` [N, P] and `audio` [2A, channels] (None without sound) are rows, float32.
    """

    stage: str
    step: int
    steps: int
    video: Tensor
    audio: Tensor | None


def save_state(path: Path, state: SamplerState) -> None:
    """Replace the saved state."""
    tensors = {VIDEO: state.video.contiguous()}
    if state.audio is not None:
        tensors[AUDIO] = state.audio.contiguous()
    # One entry: safetensors writes several in an order that differs between runs, and so would the bytes.
    metadata = {STATE: json.dumps({"stage": state.stage, "step": state.step, "steps": state.steps})}
    # safetensors' own writing hides what the system said of a full disk, so only its bytes are used.
    write_bytes(path, safetensors.torch.save(tensors, metadata))


def load_state(path: Path) -> SamplerState | None:
    """The saved state, or None when there is none; raises `FirstlookError` when it is damaged."""
    if not path.exists():
        return None
    try:
        with safetensors.safe_open(path, "pt") as file:
            described = json.loads(file.metadata()[STATE])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        place = str(described["stage"]), int(described["step"]), int(described["steps"])
        return SamplerState(*place, tensors[VIDEO], tensors.get(AUDIO))
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise FirstlookError(f"{path} is damaged ({error}): delete it to start this job again.") from error


def save_frames(path: Path, frames: np.ndarray) -> None:
    """Write frames, uint8 [F, H, W, 3]."""
    write_bytes(path, safetensors.numpy.save({FRAMES: np.ascontiguousarray(frames)}))


def load_frames(path: Path) -> np.ndarray:
    """Read frames; raises `FirstlookError` when the file is missing or damaged."""
    try:
        return safetensors.numpy.load_file(path)[FRAMES]
    except (OSError, KeyError, safetensors.SafetensorError) as error:
        raise FirstlookError(f"{path} cannot be read ({error}): make the preview again.") from error
