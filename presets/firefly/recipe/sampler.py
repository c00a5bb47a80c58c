"""A small torch sampler for looking at a model in training; the product renders through the pipeline
instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLMiniMaxH3
from torch import Tensor, nn
from transformers import AutoTokenizer

from recipe import forward, layout, train_vae, vae, world
from recipe.batches import LATENT_FRAMES, UNCONDITIONAL
from recipe.text_encoder import Qwen3VLTextModel, hidden_states
from recipe.train import build_denoiser


@dataclass(frozen=True)
class Settings:
    """How to sample."""

    steps: int = 12
    guidance: float = 1.5
    shift: float = 3.0


@dataclass(frozen=True)
class Studio:
    """Everything that turns a prompt into frames."""

    denoiser: nn.Module
    text_model: nn.Module
    tokenizer: object
    vae: AutoencoderKLMiniMaxH3

    @classmethod
    def from_checkpoint(cls, work: Path) -> Studio:
        """The averaged weights of WORK/checkpoint.pt and the decoder of WORK/decoder.pt."""
        stored = torch.load(work / "checkpoint.pt", weights_only=True)
        denoiser = build_denoiser()
        denoiser.load_state_dict(stored["denoiser_ema"])
        text_model = Qwen3VLTextModel.from_pretrained(work / "text_encoder", dtype=torch.float32)
        text_model.load_state_dict(stored["text_ema"])
        tokenizer = AutoTokenizer.from_pretrained(work / "tokenizer")
        return cls(denoiser.eval(), text_model.eval(), tokenizer, train_vae.load_vae(work).eval())

    @torch.no_grad()
    def velocity(self, prompt: str, rows: Tensor, time: float, scale: int, compute: torch.dtype) -> Tensor:
        """Velocity (1, V, C) of noisy rows under one prompt."""
        ids = self.tokenizer([prompt or UNCONDITIONAL], add_special_tokens=False, return_tensors="pt")[
            "input_ids"
        ]
        height, width = world.HEIGHT * scale // vae.PATCH, world.WIDTH * scale // vae.PATCH
        positions = layout.packed_positions(ids.shape[1], LATENT_FRAMES, height, width)
        config = self.denoiser.config
        tables = layout.rotary_tables(
            torch.from_numpy(positions).float(), config.rope_freq_dim, config.rope_theta
        )
        cos, sin = (table[None] for table in tables)
        states = hidden_states(self.text_model, ids)
        return forward.velocity(self.denoiser, states, rows, torch.tensor([time]), cos, sin, compute)

    @torch.no_grad()
    def sample(
        self,
        prompt: str,
        scale: int,
        seed: int,
        settings: Settings,
        kept: Tensor | None = None,
        keep: float = 0.0,
        compute: torch.dtype = torch.bfloat16,
    ) -> Tensor:
        """Normalised latent rows (1, V, C), from noise or from `kept` rows noised to time `keep`."""
        count = LATENT_FRAMES * world.HEIGHT * world.WIDTH * scale**2 // vae.PATCH**2
        x = torch.randn(1, count, vae.CHANNELS, generator=torch.Generator().manual_seed(seed))
        grid = torch.linspace(1, 0, settings.steps + 1)
        sigmas = settings.shift * grid / (1 + (settings.shift - 1) * grid)
        if kept is not None:
            x = keep * kept + (1 - keep) * x
            sigmas = torch.cat([torch.tensor([1 - keep]), sigmas[sigmas < 1 - keep]])
        for sigma, following in zip(sigmas[:-1].tolist(), sigmas[1:].tolist(), strict=True):
            v = self.velocity(prompt, x, 1 - sigma, scale, compute)
            if settings.guidance != 1:
                free = self.velocity(UNCONDITIONAL, x, 1 - sigma, scale, compute)
                v = free + settings.guidance * (v - free)
            x = x + (sigma - following) * v
        return x

    def statistics(self) -> tuple[Tensor, Tensor]:
        return train_vae.statistics(self.vae)

    @torch.no_grad()
    def decode(self, rows: Tensor, scale: int) -> np.ndarray:
        """Frames uint8 (22, H, W, 3) of normalised latent rows."""
        mean, std = self.statistics()
        height, width = world.HEIGHT * scale // vae.PATCH, world.WIDTH * scale // vae.PATCH
        latents = rows[0].T.reshape(1, vae.CHANNELS, LATENT_FRAMES, height, width)
        pixels = vae.restore_pixels(self.vae.decode(latents * std + mean).sample)
        return (pixels[0].permute(1, 2, 3, 0).numpy() * 255 + 0.5).astype(np.uint8)
