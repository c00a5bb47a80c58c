"""A tiny random MiniMax-H3 that runs from end to end, for tests of the machinery around it.

Every part is the real class; only the weights are random, so the pictures are noise but the bytes are exact.
"""

from __future__ import annotations

import io
from pathlib import Path

import torch
from diffusers import MiniMaxH3Transformer3DModel

from pipeline import Presets, load_presets
from pipeline.convert import convert
from pipeline.meter import ByteMeter
from tests.pipeline.tiny import LATENT_CHANNELS, TEXT_WIDTH, write_model

TRANSFORMER_CONFIG = {
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "hidden_size": 32,
    "num_layers": 3,
    "num_refiner_layers": 1,
    "ffn_dim": 64,
    "in_channels": LATENT_CHANNELS,
    "audio_in_channels": 32,
    "text_dim": TEXT_WIDTH,
    "freq_dim": 16,
    "time_embed_hidden_dim": 32,
    "time_embed_dim": 16,
    "rope_freq_dim": 2,
}

PRESET = """
title = "Tiny"
model = "model"
fps = 12
preview_first = {preview_first}
[render]
width = 96
height = 64
frames = 22
steps = {steps}
guidance = 1.5
keep = 0.5
[preview]
width = 96
height = 64
frames = 22
steps = 3
"""


def write_running_model(folder: Path) -> Path:
    """A complete model folder whose denoiser computes."""
    write_model(folder)
    torch.manual_seed(11)
    model = MiniMaxH3Transformer3DModel(**TRANSFORMER_CONFIG)
    source = folder.parent / f"{folder.name}-transformer"
    model.save_pretrained(source)
    for path in (folder / "transformer").glob("*.gguf"):
        path.unlink()
    convert(source, folder / "transformer" / "tiny.gguf", "q8", meter=_quiet)
    return folder


def write_presets(folder: Path) -> Presets:
    """"tiny" renders from noise in 4 steps, "tiny-first" makes its own preview, "tiny-long" takes a while."""
    for name, first, steps in (("tiny", "false", 4), ("tiny-first", "true", 4), ("tiny-long", "false", 200)):
        text = PRESET.format(preview_first=first, steps=steps)
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return load_presets(folder)


def _quiet(label: str, total: int) -> ByteMeter:
    return ByteMeter(label, total, io.StringIO())
