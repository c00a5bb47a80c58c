"""Two ways to render a prompt for the evaluation: through the product's pipeline, or with the recipe's own
sampler.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image

from recipe import dataset, vae, world
from recipe.sampler import Settings, Studio

PRESET = "firefly"


class Renderer(Protocol):
    """Renders frames uint8 (22, H, W, 3)."""

    def plain(self, text: str, seed: int, scale: int) -> np.ndarray: ...
    def preview(self, text: str, seed: int) -> np.ndarray: ...
    def kept(self, text: str, seed: int, keep: float) -> np.ndarray: ...
    def __enter__(self) -> Renderer: ...
    def __exit__(self, *exception: object) -> None: ...


class TorchRenderer:
    """The recipe's sampler on the averaged weights of the last checkpoint."""

    def __init__(self, work: Path, steps: int, guidance: float, shift: float) -> None:
        self.studio = Studio.from_checkpoint(work)
        self.settings = Settings(steps, guidance, shift)
        levels, self.mean, self.std = dataset.load_encoder(work)
        self.matrix = vae.encoder_matrix(levels)

    def plain(self, text: str, seed: int, scale: int) -> np.ndarray:
        return self.studio.decode(self.studio.sample(text, scale, seed, self.settings), scale)

    def preview(self, text: str, seed: int) -> np.ndarray:
        return self.plain(text, seed, 1)

    def kept(self, text: str, seed: int, keep: float) -> np.ndarray:
        if keep == 0:
            return self.plain(text, seed, 2)
        rows = encode_enlarged(self.preview(text, seed), self.matrix, self.mean, self.std)
        rows = torch.from_numpy(rows).reshape(1, -1, vae.CHANNELS)
        return self.studio.decode(self.studio.sample(text, 2, seed + 1000, self.settings, rows, keep), 2)

    def __enter__(self) -> TorchRenderer:
        return self

    def __exit__(self, *exception: object) -> None:
        return None


def enlarge(frames: np.ndarray) -> np.ndarray:
    """Frames uint8 (F, h, w, 3) bicubically to twice the size."""
    pixels = torch.from_numpy(frames).permute(0, 3, 1, 2).float()
    size = (frames.shape[1] * 2, frames.shape[2] * 2)
    pixels = torch.nn.functional.interpolate(pixels, size=size, mode="bicubic", antialias=True)
    return pixels.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy()


def encode_enlarged(frames: np.ndarray, matrix: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Normalised latents (7, 14, 24, 64) of a preview enlarged to full size."""
    patches = vae.to_patches(vae.normalise_pixels(enlarge(frames)))
    return (vae.encode_patches(patches, matrix) - mean) / std


class PipelineRenderer:
    """The product: the C engine and the pipeline around it, with the bundled preset."""

    def __init__(self, work: Path, steps: int, guidance: float, shift: float) -> None:
        # Imported here, because the recipe has to train without the product.
        import pipeline

        self.pipeline = pipeline
        self.folder = work / f"renders-{os.getpid()}"
        self.numbers = {"steps": steps, "guidance": guidance}

    def __enter__(self) -> PipelineRenderer:
        shutil.rmtree(self.folder, ignore_errors=True)
        presets = self.pipeline.load_presets(self.folder / "no-presets-of-the-user")
        self.preset = presets[PRESET]
        self.studio = self.pipeline.Studio(self.folder, presets)
        self.studio.__enter__()
        self.previews: dict[tuple[str, int], object] = {}
        return self

    def __exit__(self, *exception: object) -> None:
        self.studio.__exit__(*exception)
        shutil.rmtree(self.folder, ignore_errors=True)

    def submit(self, **form: object):
        """Run one job to its end."""
        request = self.pipeline.Request.from_form(form | self.numbers, self.preset)
        job = self.studio.submit(request)
        status = job.wait()
        if status.state != "done":
            raise SystemExit(f"The pipeline could not render {form['prompt']!r}: {status.message}")
        return job

    def preview_job(self, text: str, seed: int):
        if (text, seed) not in self.previews:
            self.previews[text, seed] = self.submit(prompt=text, seed=seed, stage="preview")
        return self.previews[text, seed]

    def preview(self, text: str, seed: int) -> np.ndarray:
        from pipeline.latents import load_frames
        from pipeline.plan import GENERATED_FILE

        return load_frames(self.preview_job(text, seed).frames_folder / GENERATED_FILE)

    def render(self, **form: object) -> np.ndarray:
        job = self.submit(stage="render", **form)
        paths = [job.frame_path(index + 1) for index in range(world.FRAMES)]
        frames = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in paths])
        shutil.rmtree(job.folder)
        return frames

    def plain(self, text: str, seed: int, scale: int) -> np.ndarray:
        if scale == 1:
            return self.preview(text, seed)
        return self.render(prompt=text, seed=seed, keep=0)

    def kept(self, text: str, seed: int, keep: float) -> np.ndarray:
        if keep == 0:
            return self.render(prompt=text, seed=seed, keep=0)
        return self.render(prompt=text, seed=seed, keep=keep, source=self.preview_job(text, seed).id)
