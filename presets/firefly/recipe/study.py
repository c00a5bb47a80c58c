"""Compare sampler settings on the previews of some prompts: what the bundled preset's numbers rest on.

Usage, from the repository's root: PYTHONPATH=.:presets/firefly python -m recipe.study WORK [--prompts 16]
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import numpy as np
import torch

from recipe import prompts, score
from recipe.evaluate import PARTS, evaluate
from recipe.rendering import TorchRenderer
from recipe.sampler import Settings

LOG = logging.getLogger("study")
CANDIDATES = (
    Settings(steps=12, guidance=1.0, shift=3.0),
    Settings(steps=8, guidance=1.0, shift=3.0),
    Settings(steps=6, guidance=1.0, shift=3.0),
    Settings(steps=4, guidance=1.0, shift=3.0),
    Settings(steps=8, guidance=1.25, shift=3.0),
    Settings(steps=8, guidance=1.5, shift=3.0),
    Settings(steps=12, guidance=1.5, shift=3.0),
    Settings(steps=20, guidance=1.5, shift=3.0),
    Settings(steps=12, guidance=1.5, shift=1.0),
    Settings(steps=12, guidance=1.5, shift=8.0),
    Settings(steps=12, guidance=2.5, shift=3.0),
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare sampler settings.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--prompts", type=int, default=16)
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    net = score.load_net(args.work)
    renderer = TorchRenderer(args.work, 12, 1.5, 3.0)
    step = len(prompts.ALL) / args.prompts
    chosen = [prompts.ALL[int(i * step)] for i in range(args.prompts)]
    print(
        "| steps | guidance | shift | all three right | stray | PSNR |\n|---|---|---|---|---|---|", flush=True
    )
    for settings in CANDIDATES:
        renderer.settings = settings
        results, _ = evaluate(renderer, chosen, [1], 1, net)
        right = sum(all(r.right(part) for part in PARTS) for r in results)
        stray = 100 * np.mean([r.reading.stray for r in results])
        psnr = np.mean([r.likeness for r in results])
        head = f"| {settings.steps} | {settings.guidance} | {settings.shift} | {right}/{len(results)}"
        print(f"{head} | {stray:.0f} % | {psnr:.1f} dB |", flush=True)


if __name__ == "__main__":
    main()
