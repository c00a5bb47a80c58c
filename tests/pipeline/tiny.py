"""Tiny random models of the real classes, for tests that only need the machinery, not a picture."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from diffusers import AutoencoderKLMiniMaxH3
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3VLTextConfig, Qwen3VLTextModel

TEXT_WIDTH, LAYERS, LATENT_CHANNELS = 32, 3, 4

VAE_CONFIG = {
    "latent_channels": LATENT_CHANNELS,
    "block_out_channels": (8, 8, 8, 8),
    "layers_per_block": 1,
    "spatial_downsample_factors": (2, 2, 2, 2),
    "temporal_downsample_factors": (1, 2, 2, 1),
    "norm_num_groups": 4,
    "decoder_num_layers": 2,
    "decoder_num_attention_heads": 2,
    "decoder_attention_head_dim": 8,
    "decoder_ffn_mult": 2,
    "latents_mean": (0.1, -0.2, 0.3, 0.0),
    "latents_std": (1.5, 0.5, 2.0, 1.0),
}

TEXT_CONFIG = {
    "vocab_size": 300,
    "hidden_size": TEXT_WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}


def make_vae(**changes) -> AutoencoderKLMiniMaxH3:
    """A random VAE whose residual branches count: the class starts them at zero."""
    torch.manual_seed(3)
    model = AutoencoderKLMiniMaxH3(**(VAE_CONFIG | changes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "scale" in name or "register" in name:
                parameter.normal_(std=0.5)
    return model


def make_text_model() -> Qwen3VLTextModel:
    torch.manual_seed(5)
    return Qwen3VLTextModel(Qwen3VLTextConfig(**TEXT_CONFIG)).eval()


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def write_gguf(
    path: Path, patch=(1, 2, 2), channels=LATENT_CHANNELS, text=TEXT_WIDTH, prefix="", drop=()
) -> None:
    """A file with the names and shapes by which a denoiser is recognised; it computes nothing."""
    writer = gguf.GGUFWriter(path, "anything")
    writer.add_array("minimax_h3.patch_size", [int(size) for size in patch])
    shapes = {
        "video_patch_proj.weight": (8, channels * int(np.prod(patch))),
        "audio_patch_proj.weight": (8, 32),
        "condition_proj.weight": (8, text),
        "blocks.0.attn.qkv_proj.weight": (24, 8),
    }
    for name, shape in shapes.items():
        if name not in drop:
            writer.add_tensor(prefix + name, np.zeros(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_model(folder: Path) -> Path:
    """A complete model folder of random parts."""
    (folder / "transformer").mkdir(parents=True)
    write_gguf(folder / "transformer" / "tiny.gguf")
    make_vae().save_pretrained(folder / "vae")
    make_text_model().save_pretrained(folder / "text_encoder")
    make_tokenizer().save_pretrained(folder / "tokenizer")
    index = {"_firstlook": {"text_hidden_layer": 2, "audio": False}}
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder
