"""Write the model folder from a training checkpoint: text encoder, tokenizer, VAE, scheduler and denoiser.

Usage: python -m recipe.export WORK MODEL_FOLDER [--shift 3]
The denoiser is saved in diffusers' layout in WORK/transformer and converted from there to one GGUF file by
`python -m pipeline convert`, so run this with the repository's root on the path.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from recipe.sampler import Studio
from recipe.text_encoder import HIDDEN_LAYER

LOG = logging.getLogger("export")
REPOSITORY = Path(__file__).resolve().parents[3]
FPS = 12


def write_json(path: Path, content: dict) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    part.replace(path)


def place(source: Path, target: Path, names: list[str]) -> None:
    """Move finished files into the model folder."""
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        part = target / f"{name}.part"
        shutil.copyfile(source / name, part)
        part.replace(target / name)


def export_transformer(studio: Studio, work: Path, model: Path) -> None:
    """Save WORK/transformer and convert it to MODEL/transformer/firefly.gguf."""
    source = work / "transformer"
    studio.denoiser.save_pretrained(source)
    target = work / "firefly.gguf"
    target.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pipeline", "convert", "--input", str(source)]
    command += ["--out", str(target), "--quant", "f16"]
    subprocess.run(command, check=True, cwd=REPOSITORY)
    place(source, model / "transformer", ["config.json"])
    place(work, model / "transformer", [target.name])


def export(work: Path, model: Path, shift: float) -> None:
    """Write the whole model folder."""
    studio = Studio.from_checkpoint(work)
    export_transformer(studio, work, model)
    staged = work / "export"
    studio.text_model.to(torch.float16).save_pretrained(staged / "text_encoder")
    place(staged / "text_encoder", model / "text_encoder", ["config.json", "model.safetensors"])
    studio.vae.to(torch.float16).save_pretrained(staged / "vae")
    place(staged / "vae", model / "vae", ["config.json", "diffusion_pytorch_model.safetensors"])
    place(work / "tokenizer", model / "tokenizer", ["tokenizer.json", "tokenizer_config.json"])
    (model / "scheduler").mkdir(exist_ok=True)
    scheduler = {"_class_name": "MiniMaxH3Scheduler", "shift": shift}
    write_json(model / "scheduler" / "scheduler_config.json", scheduler)
    index = {
        "_class_name": "MiniMaxH3Pipeline",
        "scheduler": ["diffusers", "MiniMaxH3Scheduler"],
        "text_encoder": ["transformers", "Qwen3VLTextModel"],
        "tokenizer": ["transformers", "PreTrainedTokenizerFast"],
        "transformer": ["diffusers", "MiniMaxH3Transformer3DModel"],
        "vae": ["diffusers", "AutoencoderKLMiniMaxH3"],
        "_firstlook": {"text_hidden_layer": HIDDEN_LAYER, "fps": FPS, "audio": False},
    }
    write_json(model / "model_index.json", index)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the model folder.")
    parser.add_argument("work", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--shift", type=float, default=3.0)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    export(args.work.resolve(), args.model.resolve(), args.shift)


if __name__ == "__main__":
    main()
