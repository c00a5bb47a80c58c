"""Latents of enlarged previews, the start from which a full-size render that keeps its composition is made.

Decoding with the PCA, enlarging and encoding again are all linear, so together they are one affine map from
a latent of the small size to the four latents of the full size that cover the same place. That is a little
blurrier than a preview from the real decoder, and takes seconds instead of an hour.

Usage: python -m recipe.previews WORK   (writes WORK/kept_2.npy)
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from recipe import dataset, vae, world
from recipe.batches import KEPT_EVERY

LOG = logging.getLogger("previews")
LATENT_NOISE = 0.1


def enlarge_patches(patches: np.ndarray) -> np.ndarray:
    """Patches (N, 3072) bicubically to twice the size, as the four patches they become: (N, 2, 2, 3072)."""
    count, size = len(patches), vae.PATCH
    pictures = (
        torch.from_numpy(patches).float().view(count * vae.PATCH_FRAMES, size, size, 3).permute(0, 3, 1, 2)
    )
    large = F.interpolate(pictures, scale_factor=2, mode="bicubic").permute(0, 2, 3, 1)
    cut = large.reshape(count, vae.PATCH_FRAMES, 2, size, 2, size, 3).permute(0, 2, 4, 1, 3, 5, 6)
    return cut.reshape(count, 2, 2, vae.PATCH_VALUES).numpy()


def enlarging_map(work: Path) -> tuple[np.ndarray, np.ndarray]:
    """Matrix (64, 2, 2, 64) and offset (2, 2, 64) between normalised latents of the two sizes."""
    levels, mean, std = dataset.load_encoder(work)
    matrix = vae.encoder_matrix(levels)
    scenes = world.training_scenes()[:: len(world.training_scenes()) // 20]
    average = dataset.sample_patches(scenes, 1, 80, seed=4)[0].astype(np.float32).mean(0)
    rest = average - matrix.T @ (matrix @ average)
    inputs = np.concatenate([np.zeros((1, vae.CHANNELS), np.float32), np.eye(vae.CHANNELS, dtype=np.float32)])
    patches = (inputs * std + mean) @ matrix + rest
    outputs = (vae.encode_patches(enlarge_patches(patches), matrix) - mean) / std
    return outputs[1:] - outputs[0], outputs[0]


def enlarge_latents(latents: np.ndarray, matrix: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Normalised latents (T, h, w, 64) to (T, 2h, 2w, 64)."""
    out = np.einsum("thwc,cijd->thiwjd", latents, matrix, optimize=True) + offset[:, None]
    frames, height, _, width, _, channels = out.shape
    return out.reshape(frames, 2 * height, 2 * width, channels)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    torch.set_num_threads(1)
    work, start = Path(sys.argv[1]), time.monotonic()
    matrix, offset = enlarging_map(work)
    small = np.load(work / "latents_1.npy", mmap_mode="r")
    like = np.load(work / "latents_2.npy", mmap_mode="r")
    chosen = range(0, len(small), KEPT_EVERY)
    kept = np.empty((len(chosen), *like.shape[1:]), np.float16)
    rng = np.random.default_rng(0)
    errors = []
    for place, index in enumerate(chosen):
        latents = small[index].astype(np.float32)
        noise = LATENT_NOISE * rng.standard_normal(latents.shape, dtype=np.float32)
        kept[place] = enlarge_latents(latents + noise, matrix, offset)
        if place % 50 == 0:
            errors.append(np.square(kept[place].astype(np.float32) - like[index]).mean())
    vae.save_latents(work, "kept_2", kept)
    LOG.info("%d clips, squared distance to the sharp latents %.3f", len(kept), np.mean(errors))
    LOG.info("%.0f s", time.monotonic() - start)


if __name__ == "__main__":
    main()
