"""Training batches: latents of random scenes and captions that all have the same number of tokens."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recipe import captions, layout, world

LATENT_FRAMES = 7
CAPTIONS_PER_COMBINATION = 160
UNCONDITIONAL = " "
KEPT_EVERY = 2  # latents of enlarged previews exist for every second scene
KEPT_SHARE = 0.5


@dataclass(frozen=True)
class Kind:
    """One shape of batch: size of the picture, number of latent frames, samples, and how often it is
    drawn.
    """

    scale: int
    frames: int
    samples: int
    share: float

    @classmethod
    def parse(cls, text: str) -> Kind:
        """From "scale:frames:samples:share"."""
        scale, frames, samples, share = text.split(":")
        return cls(int(scale), int(frames), int(samples), float(share))


@dataclass(frozen=True)
class Batch:
    """ids (B, N); clean (B, V, C); mask (B, V) on the sprite; cos, sin (B, N+V, 3*freq_dim).

    `kept` (B, V, C), if present, holds the latents of the enlarged preview of the same clips.
    """

    ids: Tensor
    clean: Tensor
    mask: Tensor
    cos: Tensor
    sin: Tensor
    kept: Tensor | None = None


class CaptionPool:
    """Token ids of many captions per (noun, setting, motion), grouped by token length."""

    def __init__(self, tokenizer, scenes: list[world.Scene], seed: int) -> None:
        rng = random.Random(seed)
        keys = sorted({(s.noun, s.setting, s.motion) for s in scenes})
        self.by_length: dict[int, dict[tuple[str, str, str], list[list[int]]]] = defaultdict(dict)
        counts: dict[int, int] = defaultdict(int)
        for key in keys:
            texts = [captions.caption(world.Scene(*key, 0), rng) for _ in range(CAPTIONS_PER_COMBINATION)]
            for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]:
                self.by_length[len(ids)].setdefault(key, []).append(ids)
                counts[len(ids)] += 1
        # Only lengths that nearly every combination can be said in, so that length says nothing about
        # content.
        self.lengths = sorted(n for n, table in self.by_length.items() if len(table) > 0.97 * len(keys))
        self.weights = [counts[n] for n in self.lengths]
        self.empty = tokenizer(UNCONDITIONAL, add_special_tokens=False)["input_ids"]

    def draw_length(self, rng: random.Random) -> int:
        return rng.choices(self.lengths, self.weights)[0]

    def draw(self, key: tuple[str, str, str], length: int, rng: random.Random) -> list[int] | None:
        """A caption of that many tokens, or None when the pool has none."""
        found = self.by_length[length].get(key)
        return rng.choice(found) if found else None


class LatentStore:
    """All latents and sprite masks of one size, memory-mapped."""

    def __init__(self, work: Path, scale: int) -> None:
        self.latents = np.load(work / f"latents_{scale}.npy", mmap_mode="r")
        self.masks = np.load(work / f"mask_{scale}.npy", mmap_mode="r")
        self.height, self.width = self.latents.shape[2:4]
        self.kept_path = work / f"kept_{scale}.npy"
        self.kept: np.ndarray | None = None

    def has_kept(self) -> bool:
        """Whether latents of enlarged previews are there by now; they may be written while training runs."""
        if self.kept is None and self.kept_path.exists():
            self.kept = np.load(self.kept_path, mmap_mode="r")
        return self.kept is not None

    def take(self, index: int, frames: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Latents (len(frames)*h*w, C) and mask (len(frames)*h*w,) of one scene."""
        latents = self.latents[index][frames]
        return latents.reshape(-1, latents.shape[-1]), self.masks[index][frames].reshape(-1)


def batch_rotary(
    lengths: int, frames: list[list[int]], height: int, width: int, freq_dim: int, theta: float
) -> tuple[Tensor, Tensor]:
    """cos and sin (B, N+V, 3*freq_dim) for captions of `lengths` tokens and the latent frames of every
    sample.
    """
    cache: dict[tuple[int, ...], Tensor] = {}
    rows = []
    for chosen in frames:
        key = tuple(chosen)
        if key not in cache:
            text = np.zeros((lengths, 3))
            text[:, 0] = np.arange(lengths)
            video = layout.video_positions(chosen, height, width)
            video[:, 0] += lengths
            cache[key] = torch.from_numpy(np.concatenate([text, video])).float()
        rows.append(cache[key])
    return layout.rotary_tables(torch.stack(rows), freq_dim, theta)


class BatchMaker:
    """Draws training batches."""

    def __init__(
        self, work: Path, tokenizer, freq_dim: int, theta: float, seed: int, final_places: bool = False
    ) -> None:
        self.scenes = world.training_scenes()
        self.allowed = [
            index
            for index, scene in enumerate(self.scenes)
            if not final_places or scene.place == world.FINAL_PLACE[scene.motion]
        ]
        self.pool = CaptionPool(tokenizer, self.scenes, seed=7)
        self.stores: dict[int, LatentStore] = {}
        self.work = work
        self.freq_dim, self.theta = freq_dim, theta
        self.rng = random.Random(seed)

    def store(self, scale: int) -> LatentStore:
        if scale not in self.stores:
            self.stores[scale] = LatentStore(self.work, scale)
        return self.stores[scale]

    def draw(self, kind: Kind, unconditional: bool) -> Batch:
        """One batch of the given kind; an unconditional one has the one-token empty prompt."""
        rng = self.rng
        from_kept = self.store(kind.scale).has_kept() and rng.random() < KEPT_SHARE
        allowed = [i for i in self.allowed if i % KEPT_EVERY == 0] if from_kept else self.allowed
        length = len(self.pool.empty) if unconditional else self.pool.draw_length(rng)
        ids, indices = [], []
        while len(ids) < kind.samples:
            index = rng.choice(allowed)
            scene = self.scenes[index]
            tokens = self.pool.empty
            if not unconditional:
                tokens = self.pool.draw((scene.noun, scene.setting, scene.motion), length, rng)
            if tokens is not None:
                ids.append(tokens)
                indices.append(index)
        frames = [sorted(rng.sample(range(LATENT_FRAMES), kind.frames)) for _ in indices]
        return self.assemble(kind.scale, ids, indices, frames, from_kept)

    def assemble(
        self,
        scale: int,
        ids: list[list[int]],
        indices: list[int],
        frames: list[list[int]],
        from_kept: bool = False,
    ) -> Batch:
        """Batch of the given captions (all of one length), scenes and latent frames."""
        store = self.store(scale)
        pairs = [store.take(index, chosen) for index, chosen in zip(indices, frames, strict=True)]
        clean = torch.from_numpy(np.stack([pair[0] for pair in pairs]).astype(np.float32))
        mask = torch.from_numpy(np.stack([pair[1] for pair in pairs]))
        kept = None
        if from_kept:
            drawn = zip(indices, frames, strict=True)
            rows = [
                store.kept[index // KEPT_EVERY][chosen].reshape(-1, clean.shape[-1])
                for index, chosen in drawn
            ]
            kept = torch.from_numpy(np.stack(rows).astype(np.float32))
        cos, sin = batch_rotary(len(ids[0]), frames, store.height, store.width, self.freq_dim, self.theta)
        return Batch(torch.tensor(ids), clean, mask, cos, sin, kept)
