"""The bundled model: its parts load offline, fit each other, and do what they were trained for."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLMiniMaxH3, MiniMaxH3Transformer3DModel
from gguf import GGUFReader
from recipe import captions, forward, layout, train_vae, vae, world
from recipe.world import Scene
from safetensors.torch import load_file
from transformers import AutoTokenizer, Qwen3VLTextModel

LEAST_PSNR = 24.0


@pytest.fixture(scope="module")
def tokenizer(model_folder: Path):
    return AutoTokenizer.from_pretrained(model_folder / "tokenizer", local_files_only=True)


@pytest.fixture(scope="module")
def small_vae(model_folder: Path) -> AutoencoderKLMiniMaxH3:
    config = json.loads((model_folder / "vae" / "config.json").read_text())
    model = AutoencoderKLMiniMaxH3.from_config(config)
    weights = load_file(model_folder / "vae" / "diffusion_pytorch_model.safetensors")
    model.load_state_dict({name: weight.float() for name, weight in weights.items()})
    return model.eval()


@pytest.fixture(scope="module")
def encode_prompt(model_folder: Path, tokenizer):
    """A prompt's conditioning: the mean over its tokens of the normalised hidden state, and the states."""
    folder = model_folder / "text_encoder"
    model = Qwen3VLTextModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    layer = json.loads((model_folder / "model_index.json").read_text())["_firstlook"]["text_hidden_layer"]

    @torch.no_grad()
    def encode(text: str) -> torch.Tensor:
        ids = tokenizer([text], add_special_tokens=False, return_tensors="pt")["input_ids"]
        states = model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states[layer][0]
        return torch.nn.functional.rms_norm(states, states.shape[-1:])[-1]

    return encode


def test_any_text_tokenises_and_comes_back(tokenizer) -> None:
    for text in ("a dog runs to the right", " ", "Ünïcödé 🦊 跑", "\tline\nbreak", "A RED CAR!!"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert ids
        assert tokenizer.decode(ids) == text
    assert len(tokenizer(" ", add_special_tokens=False)["input_ids"]) == 1


def test_captions_take_few_tokens(tokenizer) -> None:
    rng = random.Random(3)
    scenes = world.training_scenes()
    texts = [captions.caption(rng.choice(scenes), rng) for _ in range(300)]
    counts = [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    assert max(counts) < 40
    assert np.mean(counts) < 14


def test_the_text_encoder_tells_nouns_apart(encode_prompt) -> None:
    """The nearest state among fresh captions of all nouns belongs to the same noun, whatever else is said."""
    rng = random.Random(11)
    states, nouns = [], []
    for noun in world.NOUNS:
        for setting in ("night", "beach"):
            for motion in ("right", "jump"):
                text = captions.plain_caption(Scene(noun, setting, motion, 0), rng)
                states.append(encode_prompt(text))
                nouns.append((noun, setting, motion))
    stacked = torch.nn.functional.normalize(torch.stack(states), dim=-1)
    close = stacked @ stacked.T
    same = torch.tensor([[a[0] == b[0] for b in nouns] for a in nouns])
    rest = torch.tensor([[a[1:] == b[1:] for b in nouns] for a in nouns])
    # With setting and motion equal, only the noun can make a difference.
    assert close[same & rest].mean() > 0.99
    assert close[~same & rest].mean() < 0.9


@pytest.mark.parametrize("scale", [1, 2])
def test_the_vae_reconstructs_a_fresh_clip(small_vae: AutoencoderKLMiniMaxH3, scale: int) -> None:
    clip = world.render_clip(Scene("penguin", "rain", "down", 1), scale)
    pixels = torch.from_numpy(vae.normalise_pixels(clip)).permute(3, 0, 1, 2)[None]
    with torch.no_grad():
        latents = small_vae.encode(pixels).latent_dist.mode()
        frames = small_vae.decode(latents).sample
    assert latents.shape == (1, 64, 7, 7 * scale, 12 * scale)
    assert train_vae.psnr(vae.restore_pixels(frames), vae.restore_pixels(pixels)) > LEAST_PSNR


def test_latent_statistics_make_unit_variance(small_vae: AutoencoderKLMiniMaxH3) -> None:
    clip = world.render_clip(Scene("dog", "field", "still", 1))
    pixels = torch.from_numpy(vae.normalise_pixels(clip)).permute(3, 0, 1, 2)[None]
    with torch.no_grad():
        latents = small_vae.encode(pixels).latent_dist.mode()
    mean, std = train_vae.statistics(small_vae)
    normalised = (latents - mean) / std
    assert 0.2 < normalised.std() < 2.0


def test_the_training_forward_equals_the_class(model_folder: Path) -> None:
    """On the shipped configuration, packed as the class wants it, with a caption of nine tokens."""
    torch.manual_seed(0)
    config = json.loads((model_folder / "transformer" / "config.json").read_text())
    model = MiniMaxH3Transformer3DModel.from_config(config).eval()
    text_rows, frames, height, width = 9, 7, 7, 12
    positions = torch.from_numpy(layout.packed_positions(text_rows, frames, height, width)).float()
    rows = len(positions)
    video = torch.randn(2, rows - text_rows, model.config.in_channels)
    text = torch.randn(2, text_rows, model.config.text_dim)
    time = 0.3
    with torch.no_grad():
        expected = model(
            hidden_states=video,
            audio_hidden_states=torch.zeros(2, 0, model.config.audio_in_channels),
            encoder_hidden_states=text,
            timestep=torch.tensor([time]),
            timestep_indices=torch.zeros(rows, dtype=torch.long),
            token_tags=(torch.arange(rows) < text_rows).long(),
            position_ids=positions,
            video_indices=torch.arange(text_rows, rows),
            audio_indices=torch.zeros(0, dtype=torch.long),
            text_indices=torch.arange(text_rows),
        ).sample
        tables = layout.rotary_tables(positions, model.config.rope_freq_dim, model.config.rope_theta)
        cos, sin = (table.expand(2, -1, -1) for table in tables)
        found = forward.velocity(model, text, video, torch.tensor([time, time]), cos, sin)
    assert expected.abs().max() > 0.5
    assert (found - expected).abs().max() < 1e-5


def test_the_gguf_file_holds_the_configured_shapes(model_folder: Path) -> None:
    config = json.loads((model_folder / "transformer" / "config.json").read_text())
    reader = GGUFReader(model_folder / "transformer" / "firefly.gguf")
    shapes = {tensor.name: tuple(int(n) for n in reversed(tensor.shape)) for tensor in reader.tensors}
    hidden, inner = config["hidden_size"], config["num_attention_heads"] * config["attention_head_dim"]
    assert sum(name.endswith("adaln_proj.linear.weight") for name in shapes) == config["num_layers"] + 1
    for index in range(config["num_layers"]):
        assert shapes[f"blocks.{index}.attn.qkv_proj.weight"] == (3 * inner, hidden)
        assert shapes[f"blocks.{index}.mlp.fc1.weight"] == (2 * config["ffn_dim"], hidden)
    assert shapes["video_patch_proj.weight"] == (hidden, config["in_channels"])
    assert all(np.isfinite(tensor.data).all() for tensor in reader.tensors if tensor.data.dtype.kind == "f")
