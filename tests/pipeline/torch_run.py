"""diffusers' transformer behind the interface of an engine's run."""

from __future__ import annotations

import torch
from diffusers import MiniMaxH3Transformer3DModel
from torch import Tensor

from pipeline.errors import Cancelled
from pipeline.sequence import Sequence


class TorchRun:
    """One prompt and one shape; `text` is [n, text_dim]."""

    def __init__(self, model: MiniMaxH3Transformer3DModel, sequence: Sequence, text: Tensor) -> None:
        self.model, self.sequence, self.text = model, sequence, text

    @torch.no_grad()
    def velocity(self, video, audio, row_timesteps, progress=None):
        blocks = len(self.model.transformer_blocks)
        for block in range(blocks + 1):
            if progress is not None and progress(block, blocks):
                raise Cancelled
        values, indices = torch.unique(row_timesteps, sorted=True, return_inverse=True)
        layout = self.sequence
        silence = torch.zeros(0, self.model.config.audio_in_channels)
        out = self.model(
            hidden_states=video[None],
            audio_hidden_states=(silence if audio is None else audio)[None],
            encoder_hidden_states=self.text[None],
            timestep=values,
            timestep_indices=indices,
            token_tags=layout.token_tags,
            position_ids=layout.position_ids,
            video_indices=layout.video_indices,
            audio_indices=layout.audio_indices,
            text_indices=layout.text_indices,
        )
        return out.sample[0], None if audio is None else out.audio_sample[0]
