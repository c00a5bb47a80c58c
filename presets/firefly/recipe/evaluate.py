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
    """Markdown rows: size, group, shares read right, stray pixels, PSNR against the true clip."""
    lines = ["| size | prompts | subject | setting | motion | all three | stray | PSNR |"]
    lines.append("|---|---|---|---|---|---|---|---|")
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


@dataclass(frozen=True)
class Kept:
    """One full-size render, and how much of the preview is in it."""

    result: Result
    keep: float
    correlation: float
    bare_correlation: float
    frames: np.ndarray


def render_kept(renderer: Renderer, prompt: Prompt, keep: float, net: score.SubjectNet) -> Kept:
    """Render from the preview of the same seed at one keep level; 0 starts from noise."""
    preview, frames = renderer.preview(prompt.text, 1), renderer.kept(prompt.text, 1, keep)
    result = Result(prompt, 1, 2, score.read_clip(frames, prompt.setting, net), likeness(frames, prompt))
    bare = foreground_correlation(frames, preview, prompt.setting)
    LOG.info("keep %g, %s: %s, %.1f dB", keep, prompt.text, result.reading, result.likeness)
    return Kept(result, keep, correlation(frames, preview), bare, frames)


def keep_table(renders: list[Kept]) -> list[str]:
    """Markdown rows for each keep level."""
    lines = ["| keep | clips | correlation | without background | subject | setting | motion | PSNR |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for keep in sorted({r.keep for r in renders}, reverse=True):
        group = [r for r in renders if r.keep == keep]
        results = [r.result for r in group]
        cells = [f"{keep:g}" if keep else "0: from noise, same seed", str(len(group))]
        cells += [f"{np.mean([r.correlation for r in group]):.3f}"]
        cells += [f"{np.mean([r.bare_correlation for r in group]):.3f}"]
        cells += [share(results, part) for part in PARTS]
        cells += [f"{np.mean([r.likeness for r in results]):.1f} dB"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def write_sheets(rows: list[tuple[str, np.ndarray]], folder: Path, name: str) -> None:
    """Sheets of at most 18 rows."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(0, len(rows), 18):
        contact_sheet(rows[index : index + 18], folder / f"{name}-{index // 18 + 1}.jpg")


def evaluate_full(
    renderer: Renderer, chosen: list[Prompt], keeps: list[float], net: score.SubjectNet, sheets: Path
) -> list[str]:
    """The keep table over some prompts, and a sheet of each preview with its renders."""
    renders: list[Kept] = []
    for keep in keeps:
        renders += [render_kept(renderer, prompt, keep, net) for prompt in chosen]
        LOG.info("so far:\n%s", "\n".join(keep_table(renders)))
    rows = []
    for prompt in chosen[: 18 // (1 + len(keeps))]:
        rows.append((f"{prompt.text} (preview)", renderer.preview(prompt.text, 1)))
        own = [r for r in renders if r.result.prompt == prompt]
        rows += [(f"{label(prompt, r.result.reading)} (keep {r.keep:g})", r.frames) for r in own]
    write_sheets(rows, sheets, "full")
    return keep_table(renders)


def every(count: int) -> list[Prompt]:
    """So many of the prompts, evenly spread."""
    return [prompts.ALL[int(i * len(prompts.ALL) / count)] for i in range(min(count, len(prompts.ALL)))]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Evaluate Firefly.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--sheets", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=len(prompts.ALL), help="of all, evenly spread")
    parser.add_argument(
        "--full", type=int, default=0, help="prompts to render at full size, with every --keep"
    )
    parser.add_argument("--keep", type=float, action="append", default=[])
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--guidance", type=float, default=1.5)
    parser.add_argument("--shift", type=float, default=3.0, help="with --torch only")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    torch.set_num_threads(1)
    net = score.load_net(args.work)
    kind = TorchRenderer if args.torch else PipelineRenderer
    with kind(args.work, args.steps, args.guidance, args.shift) as renderer:
        results, clips = evaluate(renderer, every(args.prompts), list(range(1, args.seeds + 1)), 1, net)
        lines = table(results)
        print("\n".join(lines), flush=True)
        first = [r for r in results if r.seed == 1]
        write_sheets(
            [(label(r.prompt, r.reading), clips[r.prompt.text, 1]) for r in first], args.sheets, "preview"
        )
        if args.full:
            rows = evaluate_full(renderer, every(args.full), args.keep or [0.5, 0.0], net, args.sheets)
            print("\n".join(rows), flush=True)
            lines += ["", *rows]
    stored = [
        asdict(r.prompt) | {"seed": r.seed, "read": asdict(r.reading), "psnr": r.likeness} for r in results
    ]
    (args.work / "evaluation.json").write_text(json.dumps({"table": lines, "clips": stored}, indent=1))


if __name__ == "__main__":
    main()
