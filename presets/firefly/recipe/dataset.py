"""Render every training scene at both sizes, fit the encoder, and store all latents as float16.

Usage: python -m recipe.dataset WORK
Writes WORK/pca.npz and WORK/latents_1.npy, latents_2.npy (scenes, 7, H/16, W/16, 64) and the matching
sprite masks mask_1.npy, mask_2.npy (scenes, 7, H/16, W/16) as booleans.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

import numpy as np

from recipe import vae, world

LOG = logging.getLogger("dataset")
SPRITE_WEIGHT = 6.0
LATENT_FRAMES = 7


def sprite_mask(scene: world.Scene, scale: int) -> np.ndarray:
    """True where a latent shows part of the sprite in any of its frames, (7, H/16, W/16)."""
    cover = np.stack([world.sprite_cover(scene, scale, frame) for frame in range(world.FRAMES)])
    patches = vae.to_patches(np.repeat(cover[..., None], 3, axis=-1))
    return patches.max(axis=-1) > 0.05


def clip_patches(scene: world.Scene, scale: int) -> np.ndarray:
    """Patches (7, H/16, W/16, 3072) of one clip in the VAE's pixel space."""
    return vae.to_patches(vae.normalise_pixels(world.render_clip(scene, scale)))


def sample_patches(
    scenes: list[world.Scene], scale: int, per_clip: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """A random sample of patches (N, 3072) of the given clips and whether each shows the sprite (N,)."""
    rng = np.random.default_rng(seed)
    rows, masks = [], []
    for scene in scenes:
        patches = clip_patches(scene, scale).reshape(-1, vae.PATCH_VALUES)
        mask = sprite_mask(scene, scale).reshape(-1)
        chance = np.where(mask, SPRITE_WEIGHT, 1.0)
        pick = rng.choice(len(mask), per_clip, replace=False, p=chance / chance.sum())
        rows.append(patches[pick].astype(np.float16))
        masks.append(mask[pick])
    return np.concatenate(rows), np.concatenate(masks)


def fit(work: Path) -> None:
    """Fit the encoder on sampled patches of both sizes and store it with the latent statistics."""
    scenes = world.training_scenes()
    picked = [scenes[i] for i in np.random.default_rng(0).permutation(len(scenes))[:500]]
    small, small_mask = sample_patches(picked, 1, 90, seed=1)
    large, large_mask = sample_patches(picked, 2, 90, seed=2)
    rows = np.concatenate([small, large]).astype(np.float32)
    # The sampling already favours sprites, so every row counts the same.
    levels = vae.fit_encoder(rows, np.ones(len(rows), np.float32))
    matrix = vae.encoder_matrix(levels)
    latents = vae.encode_patches(rows, matrix)
    mean, std = latents.mean(0), latents.std(0)
    for name, part, mask in (("small", small, small_mask), ("large", large, large_mask)):
        sprites = part[mask].astype(np.float32)
        centred = sprites - sprites.mean(0)
        kept = ((centred @ matrix.T) ** 2).sum()
        LOG.info(
            "%s sprite patches: %.1f %% of the variance unexplained",
            name,
            100 * (1 - kept / (centred**2).sum()),
        )
    np.savez(work / "pca.npz", *levels, mean=mean, std=std)


def load_encoder(work: Path) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Levels, latent mean (64,) and latent std (64,) written by `fit`."""
    stored = np.load(work / "pca.npz")
    levels = [stored[f"arr_{i}"] for i in range(4)]
    return levels, stored["mean"].astype(np.float32), stored["std"].astype(np.float32)


def encode_all(work: Path, scale: int) -> None:
    """Normalised latents of every training scene at one size."""
    levels, mean, std = load_encoder(work)
    matrix = vae.encoder_matrix(levels)
    scenes = world.training_scenes()
    rows, columns = world.HEIGHT * scale // vae.PATCH, world.WIDTH * scale // vae.PATCH
    latents = np.empty((len(scenes), LATENT_FRAMES, rows, columns, vae.CHANNELS), np.float16)
    masks = np.empty(latents.shape[:-1], bool)
    for index, scene in enumerate(scenes):
        latents[index] = (vae.encode_patches(clip_patches(scene, scale), matrix) - mean) / std
        masks[index] = sprite_mask(scene, scale)
    vae.save_latents(work, f"latents_{scale}", latents)
    vae.save_latents(work, f"mask_{scale}", masks)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    work = Path(sys.argv[1])
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "pca.npz").exists():
        fit(work)
    for scale in (1, 2):
        if not (work / f"mask_{scale}.npy").exists():
            start = time.monotonic()
            encode_all(work, scale)
            LOG.info("scale %d encoded in %.0f s", scale, time.monotonic() - start)


if __name__ == "__main__":
    main()
