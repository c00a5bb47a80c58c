"""Latents of enlarged previews, the start from which a full-size render that keeps its composition is made.

Every second training clip goes through the small VAE with some noise on its latents, is enlarged as the
pipeline enlarges a preview, and is encoded again.

Usage: python -m recipe.previews WORK   (writes WORK/kept_2.npy)
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

import numpy as np
import torch

from recipe import dataset, train_vae, vae
from recipe.batches import KEPT_EVERY
from recipe.rendering import encode_enlarged

LOG = logging.getLogger("previews")
LATENT_NOISE = 0.1


@torch.no_grad()
def decode_small(model, latents: np.ndarray, generator: torch.Generator) -> np.ndarray:
    """Normalised latents (7, 7, 12, 64) to frames uint8 (22, 112, 192, 3), with noise as of a sampled
    clip.
    """
    mean, std = train_vae.statistics(model)
    rows = torch.from_numpy(latents.astype(np.float32)).permute(3, 0, 1, 2)[None]
    rows = rows + LATENT_NOISE * torch.randn(rows.shape, generator=generator)
    out = train_vae.decode(model.decoder, rows * std + mean, torch.bfloat16)[:, :, train_vae.KEPT_FRAMES]
    pixels = vae.restore_pixels(out)[0].permute(1, 2, 3, 0)
    return (pixels * 255).round().to(torch.uint8).numpy()


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    torch.set_num_threads(1)
    work, start = Path(sys.argv[1]), time.monotonic()
    model = train_vae.load_vae(work)
    levels, mean, std = dataset.load_encoder(work)
    matrix = vae.encoder_matrix(levels)
    small = np.load(work / "latents_1.npy", mmap_mode="r")
    like = np.load(work / "latents_2.npy", mmap_mode="r")
    chosen = range(0, len(small), KEPT_EVERY)
    kept = np.empty((len(chosen), *like.shape[1:]), np.float16)
    generator = torch.Generator().manual_seed(0)
    for place, index in enumerate(chosen):
        frames = decode_small(model, small[index], generator)
        kept[place] = encode_enlarged(frames, matrix, mean, std)
    vae.save_latents(work, "kept_2", kept)
    LOG.info("%d previews, %.0f s", len(kept), time.monotonic() - start)


if __name__ == "__main__":
    main()
