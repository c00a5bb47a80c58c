"""The gate: does the denoiser use the caption? Error of x0 on sprite tokens at t = 0.02 under right and
wrong captions.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor

from recipe import forward, world
from recipe.batches import LATENT_FRAMES, BatchMaker
from recipe.text_encoder import hidden_states

GATE_TIME = 0.02
GATE_CLIPS = 12
OPPOSITE = {"right": "left", "left": "right", "up": "down", "down": "up", "jump": "still", "still": "jump"}


def wrong_keys(scene: world.Scene, rng: random.Random) -> dict[str, tuple[str, str, str]]:
    """The right (noun, setting, motion) and three with one part wrong."""
    noun = rng.choice([n for n in world.NOUNS if n != scene.noun])
    setting = rng.choice([s for s in world.SETTINGS if s != scene.setting])
    return {
        "right": (scene.noun, scene.setting, scene.motion),
        "noun": (noun, scene.setting, scene.motion),
        "motion": (scene.noun, scene.setting, OPPOSITE[scene.motion]),
        "setting": (scene.noun, setting, scene.motion),
    }


@torch.no_grad()
def gate(
    denoiser, text_model, maker: BatchMaker, scale: int = 1, clips: int = GATE_CLIPS
) -> dict[str, float]:
    """Mean squared x0 error per condition, in units of the latents' variance, with the same noise
    throughout.
    """
    rng = random.Random(5)
    generator = torch.Generator().manual_seed(5)
    length = max(maker.pool.lengths, key=lambda n: maker.pool.weights[maker.pool.lengths.index(n)])
    chosen: list[int] = []
    ids: dict[str, list[list[int]]] = {"right": [], "noun": [], "motion": [], "setting": []}
    while len(chosen) < clips:
        index = rng.choice(maker.allowed)
        drawn = {
            name: maker.pool.draw(key, length, rng)
            for name, key in wrong_keys(maker.scenes[index], rng).items()
        }
        if all(tokens is not None for tokens in drawn.values()):
            chosen.append(index)
            for name, tokens in drawn.items():
                ids[name].append(tokens)
    frames = [list(range(LATENT_FRAMES))] * clips
    errors: dict[str, float] = {}
    noise: Tensor | None = None
    for name, tokens in ids.items():
        batch = maker.assemble(scale, tokens, chosen, frames)
        if noise is None:
            noise = torch.randn(batch.clean.shape, generator=generator)
        noisy = GATE_TIME * batch.clean + (1 - GATE_TIME) * noise
        time = torch.full((clips,), GATE_TIME)
        states = hidden_states(text_model, batch.ids)
        v = forward.velocity(denoiser, states, noisy, time, batch.cos, batch.sin, torch.bfloat16)
        error = (noisy + (1 - GATE_TIME) * v - batch.clean).square().mean(-1)
        errors[name] = error[batch.mask].mean().item()
    return errors
