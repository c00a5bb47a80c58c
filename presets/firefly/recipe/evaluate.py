"""Render the fixed prompts, read the clips back, and write contact sheets and tables.

Usage, from the repository's root:
    PYTHONPATH=.:presets/firefly python -m recipe.evaluate WORK --sheets presets/firefly/sheets [--seeds 2]
    [--full 20]
    ... --torch   renders WORK/checkpoint.pt with the recipe's own sampler instead of the pipeline
The classifier of recipe.score has to be in WORK. Results are printed as Markdown and written to
WORK/evaluation.json.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from recipe import prompts, score, world
from recipe.prompts import Prompt
from recipe.rendering import PipelineRenderer, Renderer, TorchRenderer
from recipe.sheets import contact_sheet

LOG = logging.getLogger("evaluate")
PARTS = ("noun", "setting", "motion")


@dataclass(frozen=True)
class Result:
    """One clip and what was read in it."""

    prompt: Prompt
    seed: int
    scale: int
    reading: score.Reading
    likeness: float

    def right(self, part: str) -> bool:
        return getattr(self.prompt, part) == getattr(self.reading, part)


def likeness(frames: np.ndarray, prompt: Prompt) -> float:
    return score.likeness(frames, prompt.noun, prompt.setting, prompt.motion)


def label(prompt: Prompt, reading: score.Reading) -> str:
    """The caption of a sheet's row: the prompt, whether it was trained, and what is wrong if anything is."""
    wrong = [
        f"{part}: {getattr(reading, part)}"
        for part in PARTS
        if getattr(prompt, part) != getattr(reading, part)
    ]
    head = "[never trained] " if prompt.held_out else ""
    return head + prompt.text + (f" -- read {', '.join(wrong)}" if wrong else "")


def evaluate(
    renderer: Renderer, chosen: list[Prompt], seeds: list[int], scale: int, net: score.SubjectNet
) -> tuple[list[Result], dict[tuple[str, int], np.ndarray]]:
    """Render and read every prompt with every seed at one size."""
    results, clips = [], {}
    for prompt in chosen:
        for seed in seeds:
            frames = renderer.plain(prompt.text, seed, scale)
            reading = score.read_clip(frames, prompt.setting, net)
            results.append(Result(prompt, seed, scale, reading, likeness(frames, prompt)))
            clips[prompt.text, seed] = frames
            LOG.info("%d %s: %s", scale, prompt.text, reading)
    return results, clips


def share(results: list[Result], part: str) -> str:
    right = sum(result.right(part) for result in results)
    return f"{right}/{len(results)} ({100 * right / max(1, len(results)):.0f} %)"


def table(results: list[Result]) -> list[str]:
    """Markdown rows: size, group, clips, subject, setting, motion, all three, stray pixels."""
    lines = [
        "| size | prompts | subject | setting | motion | all three | stray |",
        "|---|---|---|---|---|---|---|",
    ]
    for scale in sorted({r.scale for r in results}):
        for name, held_out in (("trained", False), ("never trained", True)):
            group = [r for r in results if r.scale == scale and r.prompt.held_out == held_out]
            if not group:
                continue
            cells = [share(group, part) for part in PARTS]
            whole = sum(all(r.right(part) for part in PARTS) for r in group)
            stray = np.mean([r.reading.stray for r in group])
            psnr = np.mean([r.likeness for r in group])
            size = f"{world.WIDTH * scale}×{world.HEIGHT * scale}"
            cells += [f"{whole}/{len(group)}", f"{100 * stray:.0f} %", f"{psnr:.1f} dB"]
            lines.append(f"| {size} | {name} | {' | '.join(cells)} |")
    return lines


def correlation(full: np.ndarray, preview: np.ndarray) -> float:
    """Pearson correlation of a downscaled full render with the preview's frames, each (22, H, W, 3)."""
    a, b = score.to_small(full).ravel(), score.to_small(preview).ravel()
    return float(np.corrcoef(a, b)[0, 1])


def foreground_correlation(full: np.ndarray, preview: np.ndarray, setting: str) -> float:
    """The same after the background is taken away, which every right render shares whatever it keeps."""
    parts = []
    for frames in (full, preview):
        small = score.to_small(frames)
        parts.append(
            np.concatenate([small[i] - score.background(setting, i) for i in range(len(small))]).ravel()
        )
    return float(np.corrcoef(*parts)[0, 1])


def compare_keep(
    renderer: Renderer, chosen: list[Prompt], keeps: list[float], net: score.SubjectNet
) -> tuple[list[str], dict[str, np.ndarray]]:
    """Markdown rows for each keep level (0: from noise, same seed), and the clips by "text keep"."""
    lines = [
        "| keep | correlation | without background | subject | setting | motion |",
        "|---|---|---|---|---|---|",
    ]
    clips: dict[str, np.ndarray] = {}
    previews = {p.text: renderer.preview(p.text, seed=1) for p in chosen}
    for keep in keeps:
        plain, bare, results = [], [], []
        for prompt in chosen:
            frames = renderer.kept(prompt.text, seed=1, keep=keep)
            clips[f"{prompt.text} (keep {keep:g})"] = frames
            plain.append(correlation(frames, previews[prompt.text]))
            bare.append(foreground_correlation(frames, previews[prompt.text], prompt.setting))
            reading = score.read_clip(frames, prompt.setting, net)
            results.append(Result(prompt, 1, 2, reading, likeness(frames, prompt)))
        name = f"{keep:g}" if keep else "none, same seed"
        numbers = f"{np.mean(plain):.3f} | {np.mean(bare):.3f}"
        lines.append(f"| {name} | {numbers} | " + " | ".join(share(results, part) for part in PARTS))
        lines[-1] += f" | {np.mean([r.likeness for r in results]):.1f} dB |"
        LOG.info(lines[-1])
    return lines, clips


def write_sheets(
    results: list[Result], clips: dict, keep: Callable[[Result], bool], folder: Path, name: str
) -> None:
    """Sheets of at most 18 rows."""
    rows = [(label(r.prompt, r.reading), clips[r.prompt.text, r.seed]) for r in results if keep(r)]
    for index in range(0, len(rows), 18):
        folder.mkdir(parents=True, exist_ok=True)
        contact_sheet(rows[index : index + 18], folder / f"{name}-{index // 18 + 1}.jpg")


def main() -> None:
    parser = argparse.ArgumentParser(description="Evaluate Firefly.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--sheets", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--prompts", type=int, default=len(prompts.ALL), help="use only every n-th to get this many"
    )
    parser.add_argument("--full", type=int, default=0, help="prompts at full size from noise, and for keep")
    parser.add_argument("--keep", type=float, action="append", default=[])
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--guidance", type=float, default=1.5)
    parser.add_argument("--shift", type=float, default=3.0, help="with --torch only")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    torch.set_num_threads(1)
    net = score.load_net(args.work)
    kind = TorchRenderer if args.torch else PipelineRenderer
    renderer = kind(args.work, args.steps, args.guidance, args.shift)
    step = len(prompts.ALL) / min(args.prompts, len(prompts.ALL))
    chosen = [prompts.ALL[int(i * step)] for i in range(min(args.prompts, len(prompts.ALL)))]
    lines: list[str] = []
    with renderer:
        results, clips = evaluate(renderer, chosen, list(range(1, args.seeds + 1)), 1, net)
        write_sheets(results, clips, lambda r: r.seed == 1, args.sheets, "preview")
        lines += table(results)
        if args.full:
            some = [prompts.ALL[int(i * len(prompts.ALL) / args.full)] for i in range(args.full)]
            full_results, full_clips = evaluate(renderer, some, [1], 2, net)
            write_sheets(full_results, full_clips, lambda r: True, args.sheets, "full")
            lines = table(results + full_results)
            results += full_results
            if args.keep:
                rows, kept = compare_keep(renderer, some, args.keep, net)
                lines += ["", *rows]
                for start in range(0, len(kept), 18):
                    part = list(kept.items())[start : start + 18]
                    contact_sheet(part, args.sheets / f"keep-{start // 18 + 1}.jpg")
    print("\n".join(lines))
    stored = [
        asdict(r.prompt) | {"seed": r.seed, "scale": r.scale, "read": asdict(r.reading)} for r in results
    ]
    (args.work / "evaluation.json").write_text(json.dumps({"table": lines, "clips": stored}, indent=1))


if __name__ == "__main__":
    main()
