"""The VAE: a closed-form patch PCA written into the class's causal encoder, and a small ViT decoder.

The encoder class ends in GroupNorm and SiLU. Both are made harmless exactly: the last feature channels come
in pairs
(x, -x) inside one group, so the group mean is zero and silu(x) - silu(-x) = x; and `norm_eps` is so large
that the
group's own variance does not matter (the affine weight undoes its square root).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLMiniMaxH3
from torch import Tensor

CHANNELS = 64
KEPT = (12, 32, 96, CHANNELS)  # principal components kept after each halving
NORM_EPS = float(2**22)
NORM_GAIN = float(2**11)
IMAGE_MEAN = (0.485, 0.456, 0.406)
IMAGE_STD = (0.229, 0.224, 0.225)
PATCH, PATCH_FRAMES = 16, 4
PATCH_VALUES = 3 * PATCH_FRAMES * PATCH * PATCH
CLIP_FRAMES = 17  # frames the encoder takes at a time

VAE_CONFIG = {
    "latent_channels": CHANNELS,
    "block_out_channels": (12, 32, 96, 128),
    "layers_per_block": 1,
    "spatial_downsample_factors": (2, 2, 2, 2),
    "temporal_downsample_factors": (1, 2, 2, 1),
    "norm_num_groups": 4,
    "norm_eps": NORM_EPS,
    "decoder_num_layers": 4,
    "decoder_num_attention_heads": 4,
    "decoder_attention_head_dim": 64,
    "decoder_ffn_mult": 2,
}


def normalise_pixels(frames: np.ndarray) -> np.ndarray:
    """uint8 (..., 3) to the VAE's float32 pixel space, same shape."""
    return (frames.astype(np.float32) / 255.0 - np.float32(IMAGE_MEAN)) / np.float32(IMAGE_STD)


def restore_pixels(sample: Tensor) -> Tensor:
    """VAE space (..., 3, T, H, W) to pixels in 0..1."""
    mean = torch.tensor(IMAGE_MEAN).view(3, 1, 1, 1)
    std = torch.tensor(IMAGE_STD).view(3, 1, 1, 1)
    return (sample * std + mean).clamp(0, 1)


def to_patches(clip: np.ndarray) -> np.ndarray:
    """Normalised clip (22, H, W, 3) to the patches behind its 7 latents, (7, H/16, W/16, 3072) as (t, y, x,
    c).

    Chunks of 17 frames start with one single-frame latent, which the causal padding fills up with three
    zero frames.
    """
    empty = np.zeros((3, *clip.shape[1:]), clip.dtype)
    padded = np.concatenate([empty, clip[:CLIP_FRAMES], empty, clip[CLIP_FRAMES:]])
    frames, height, width, _ = padded.shape
    cut = padded.reshape(
        frames // PATCH_FRAMES, PATCH_FRAMES, height // PATCH, PATCH, width // PATCH, PATCH, 3
    )
    return cut.transpose(0, 2, 4, 1, 3, 5, 6).reshape(-1, height // PATCH, width // PATCH, PATCH_VALUES)


def principal_axes(rows: np.ndarray, weights: np.ndarray, count: int) -> np.ndarray:
    """Weighted principal axes of rows (N, D), largest first, float64 (count, D)."""
    rows = rows.astype(np.float32)
    mean = (rows * weights[:, None]).sum(0) / weights.sum()
    centred = (rows - mean) * np.sqrt(weights)[:, None]
    _, vectors = np.linalg.eigh((centred.T @ centred).astype(np.float64))
    return vectors[:, ::-1][:, :count].T


def merge(values: np.ndarray, time: int) -> np.ndarray:
    """Concatenate the channels of every (time, 2, 2) block: (N, T, Y, X, C) to (N, T/time, Y/2, X/2,
    time*4*C).
    """
    n, t, y, x, c = values.shape
    cut = values.reshape(n, t // time, time, y // 2, 2, x // 2, 2, c)
    return cut.transpose(0, 1, 3, 5, 2, 4, 6, 7).reshape(n, t // time, y // 2, x // 2, time * 4 * c)


def fit_encoder(patches: np.ndarray, weights: np.ndarray) -> list[np.ndarray]:
    """Fit the four halvings on patches (N, 3072) with weights (N,); returns the axes (out, in) of each
    level.
    """
    values = patches.reshape(-1, PATCH_FRAMES, PATCH, PATCH, 3).astype(np.float32)
    levels = []
    for time, kept in zip((1, 2, 2, 1), KEPT, strict=True):
        values = merge(values, time)
        flat = values.reshape(-1, values.shape[-1])
        repeated = np.repeat(weights, flat.shape[0] // weights.shape[0])
        stride = max(1, flat.shape[0] // 400_000)
        axes = principal_axes(flat[::stride], repeated[::stride], kept)
        levels.append(axes)
        values = (flat @ axes.T.astype(np.float32)).reshape(*values.shape[:-1], kept)
    return levels


def encoder_matrix(levels: list[np.ndarray]) -> np.ndarray:
    """The product of all levels, float32 (64, 3072): a whole latent as one dot product with its patch."""
    values = np.eye(PATCH_VALUES).reshape(PATCH_VALUES, PATCH_FRAMES, PATCH, PATCH, 3)
    for time, axes in zip((1, 2, 2, 1), levels, strict=True):
        values = merge(values, time) @ axes.T
    return values.reshape(PATCH_VALUES, CHANNELS).T.astype(np.float32)


def encode_patches(patches: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Raw latents (..., 64) of patches (..., 3072)."""
    return patches @ matrix.T


def build_vae(mean: np.ndarray, std: np.ndarray) -> AutoencoderKLMiniMaxH3:
    """A fresh VAE of Firefly's shape with the given latent statistics (64,) each."""
    return AutoencoderKLMiniMaxH3(**VAE_CONFIG, latents_mean=mean.tolist(), latents_std=std.tolist())


@torch.no_grad()
def write_encoder(vae: AutoencoderKLMiniMaxH3, levels: list[np.ndarray]) -> None:
    """Write the PCA into the convolutions; every other encoder weight becomes zero or the identity."""
    encoder = vae.encoder
    for parameter in encoder.parameters():
        parameter.zero_()
    channels = 3
    encoder.conv_in.weight[torch.arange(3), torch.arange(3), 2, 1, 1] = 1.0
    for index, (block, axes) in enumerate(zip(encoder.down_blocks, levels, strict=True)):
        shortcut = block.resnets[0].conv_shortcut
        if shortcut is not None:
            shortcut.weight[torch.arange(channels), torch.arange(channels), 0, 0, 0] = 1.0
        time = vae.config.temporal_downsample_factors[index]
        kernel = torch.from_numpy(axes.copy()).float().view(-1, time, 2, 2, channels).permute(0, 4, 1, 2, 3)
        conv = block.downsamplers[0].conv.weight
        channels = kernel.shape[0]
        conv[:channels, : kernel.shape[1], 3 - time :, :2, :2] = kernel
    # The last level writes its 64 components as interleaved pairs, so that every norm group holds whole
    # pairs.
    last = encoder.down_blocks[-1].downsamplers[0].conv.weight
    components = last[:CHANNELS].clone()
    last[0::2], last[1::2] = components, -components
    encoder.norm_out.weight.fill_(NORM_GAIN)
    order = torch.arange(CHANNELS)
    encoder.conv_out.weight[order, 2 * order, 2, 1, 1] = 1.0
    encoder.conv_out.weight[order, 2 * order + 1, 2, 1, 1] = -1.0
    # A posterior with almost no variance: the latents of a clip are its mean.
    encoder.conv_out.bias[CHANNELS:] = -20.0
    for conv in (vae.quant_conv, vae.post_quant_conv):
        conv.bias.zero_()
        conv.weight.copy_(torch.eye(conv.weight.shape[0]).view_as(conv.weight))


def save_latents(folder: Path, name: str, values: np.ndarray) -> None:
    """Write one array atomically as folder/name.npy."""
    part = folder / f"{name}.part.npy"
    np.save(part, values)
    part.replace(folder / f"{name}.npy")
