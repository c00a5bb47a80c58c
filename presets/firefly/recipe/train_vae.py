"""Train the ViT decoder of the VAE from its PCA start; the encoder is closed-form and stays as it is.

The decoder sees whole 12x7 latents of the small size and 16x14 tiles of the large one, which are the two
shapes the
class decodes, with noise on the latents, because the denoiser's latents are never exact.

Usage: python -m recipe.train_vae WORK --minutes 20 [--resume]   (writes WORK/decoder.pt)
"""

from __future__ import annotations

import argparse
import logging
import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLMiniMaxH3
from torch import Tensor, nn

from recipe import dataset, vae, world
from recipe.attention import attention
from recipe.forward import feed_forward_with_bias, rms_norm
from recipe.muon import Muon, Team

LOG = logging.getLogger("train_vae")
ANCHOR = 100.0  # a constant pair of channels far above the signal makes the final LayerNorm nearly linear
SPRITE_LOSS = 5.0
TILE_WIDTH = 16
KEPT_FRAMES = [3, *range(4, 20), 23, *range(24, 28)]  # of 28 decoded frames, the 22 that the class keeps
LARGE_SHARE = 0.5
MOST_NOISE = 0.3


@dataclass(frozen=True)
class Sample:
    """latents (C, 7, h, w) normalised; frames (22, h*16, w*16, 3) in VAE space; cover (22, h*16, w*16)."""

    latents: np.ndarray
    frames: np.ndarray
    cover: np.ndarray


@torch.no_grad()
def start_decoder(model: AutoencoderKLMiniMaxH3, matrix: np.ndarray, patches: np.ndarray) -> None:
    """Write the PCA reconstruction into the decoder; its blocks start quiet.

    The channels that the latents leave free stand for the next principal components of `patches` (N, 3072),
    those the latents lack: the blocks only have to guess their values from what they see.
    """
    decoder = model.decoder
    channels = vae.CHANNELS
    mean = torch.tensor(model.config.latents_mean)
    std = torch.tensor(model.config.latents_std)
    weight, bias = decoder.proj_in.weight, decoder.proj_in.bias
    weight.zero_()
    bias.zero_()
    weight[:channels] = torch.diag(1 / std)
    weight[channels : 2 * channels] = torch.diag(-1 / std)
    bias[:channels], bias[channels : 2 * channels] = -mean / std, mean / std
    bias[-2], bias[-1] = ANCHOR, -ANCHOR
    gain = ANCHOR * (2 / weight.shape[0]) ** 0.5
    axes = torch.from_numpy(matrix)
    mean_patch = torch.from_numpy(patches.mean(0))
    rest = mean_patch - axes.T @ (axes @ mean_patch)
    out = gain * axes.T * std / 2
    offset = rest + axes.T @ mean
    # (t, y, x, c) patches to the class's (c, t, y, x) order.
    size = (vae.PATCH_FRAMES, vae.PATCH, vae.PATCH, 3)
    out = out.view(*size, channels).permute(3, 0, 1, 2, 4).reshape(-1, channels)
    decoder.proj_out.weight.zero_()
    decoder.proj_out.weight[:, :channels] = out
    decoder.proj_out.weight[:, channels : 2 * channels] = -out
    free = weight.shape[0] - 2 * channels - 2
    missing = patches - (patches @ matrix.T) @ matrix
    further = vae.principal_axes(missing, np.ones(len(missing), np.float32), free)
    further = further.T * (missing @ further.T.astype(np.float32)).std(0)
    further = torch.from_numpy(gain * further).float().view(*size, free).permute(3, 0, 1, 2, 4)
    decoder.proj_out.weight[:, 2 * channels : 2 * channels + free] = further.reshape(-1, free)
    decoder.proj_out.bias.copy_(offset.view(size).permute(3, 0, 1, 2).reshape(-1))
    nn.init.normal_(decoder.register_tokens, std=0.5)
    for block in decoder.transformer_blocks:
        block.scale1.fill_(0.2)
        block.scale2.fill_(0.2)
        for norm in (block.norm1, block.norm2):
            norm.weight.fill_(gain)
            norm.weight[-2:] = 0.5


def rotary(decoder: nn.Module, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Half-width cos and sin (1, N + registers + 1, 1, half) of the decoder's own length-normalised
    positions.
    """
    grids = [2.0 * (torch.arange(0.5, size) / size) - 1.0 for size in shape]
    positions = torch.stack(torch.meshgrid(*grids, indexing="ij"), dim=-1).flatten(0, 2)
    extra = torch.zeros(decoder.num_register_tokens + 1, 3)
    cos, sin = decoder.rope(torch.cat([positions, extra])[None])
    half = cos.shape[-1] // 2
    return cos[..., :half], sin[..., :half]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate-half on the leading channels of (B, S, H, d)."""
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """A linear layer in the dtype of its input."""
    return F.linear(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))


def decode(decoder: nn.Module, latents: Tensor, compute: torch.dtype) -> Tensor:
    """The class's decoder forward with fast attention: raw latents (B, C, T, h, w) to (B, 3, 4T, 16h,
    16w).
    """
    batch, _, frames, height, width = latents.shape
    x = linear(decoder.proj_in, latents.flatten(2).transpose(1, 2))
    count = x.shape[1]
    x = torch.cat([x, decoder.register_tokens.expand(batch, -1, -1), torch.zeros_like(x[:, :1])], dim=1)
    tables = rotary(decoder, (frames, height, width))
    for block in decoder.transformer_blocks:
        attn = block.attn
        normed = rms_norm(x, block.norm1.weight, 1e-5).to(compute)
        query, key, value = (
            linear(part, normed).unflatten(-1, (attn.heads, -1)) for part in (attn.to_q, attn.to_k, attn.to_v)
        )
        query, key = (rotate(rms_norm(part, 1.0, 1e-5), *tables).to(compute) for part in (query, key))
        x = x + linear(attn.to_out[0], attention(query, key, value)) * block.scale1
        normed = rms_norm(x, block.norm2.weight, 1e-5).to(compute)
        x = x + feed_forward_with_bias(block.ff, normed) * block.scale2
    x = decoder.norm_out(x[:, :count]).to(compute)
    size = (batch, frames, height, width, 3, vae.PATCH_FRAMES, vae.PATCH, vae.PATCH)
    pixels = linear(decoder.proj_out, x).float().view(size).permute(0, 4, 1, 5, 2, 6, 3, 7)
    return pixels.reshape(batch, 3, frames * 4, height * 16, width * 16)


class SampleMaker:
    """Draws decoder samples from the training scenes."""

    def __init__(self, work: Path, seed: int, final_places: bool = False) -> None:
        self.scenes = world.training_scenes()
        self.allowed = [
            index
            for index, scene in enumerate(self.scenes)
            if not final_places or scene.place == world.FINAL_PLACE[scene.motion]
        ]
        self.latents = {scale: np.load(work / f"latents_{scale}.npy", mmap_mode="r") for scale in (1, 2)}
        self.rng = random.Random(seed)

    def draw(self, scale: int) -> Sample:
        index = self.rng.choice(self.allowed)
        scene = self.scenes[index]
        latents = self.latents[scale][index].astype(np.float32)
        frames = vae.normalise_pixels(world.render_clip(scene, scale))
        cover = np.stack([world.sprite_cover(scene, scale, frame) for frame in range(world.FRAMES)])
        if scale == 2:
            left = self.rng.choice((0, latents.shape[2] - TILE_WIDTH))
            latents = latents[:, :, left : left + TILE_WIDTH]
            span = slice(left * vae.PATCH, (left + TILE_WIDTH) * vae.PATCH)
            frames, cover = frames[:, :, span], cover[:, :, span]
        return Sample(latents.transpose(3, 0, 1, 2), frames, cover)

    def batch(self, scale: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """latents (B, C, 7, h, w), frames (B, 3, 22, H, W), cover (B, 1, 22, H, W)."""
        samples = [self.draw(scale) for _ in range(count)]
        latents = torch.from_numpy(np.stack([s.latents for s in samples]))
        frames = torch.from_numpy(np.stack([s.frames for s in samples])).permute(0, 4, 1, 2, 3)
        cover = torch.from_numpy(np.stack([s.cover for s in samples]))[:, None]
        return latents, frames, cover


def reconstruction_loss(out: Tensor, target: Tensor, cover: Tensor) -> Tensor:
    """L1 + 0.3 L2 + 0.5 L1 of the gradients, sprite pixels weighted."""
    weight = 1 + (SPRITE_LOSS - 1) * (cover > 0.02).float()
    error = out - target
    pixel = ((error.abs() + 0.3 * error.square()) * weight).mean()
    across = (error[..., 1:] - error[..., :-1]).abs() * weight[..., 1:]
    down = (error[..., 1:, :] - error[..., :-1, :]).abs() * weight[..., 1:, :]
    return pixel + 0.5 * (across.mean() + down.mean())


def psnr(out: Tensor, target: Tensor, mask: Tensor | None = None) -> float:
    """PSNR in dB of pixels in 0..1, over everything or where mask is set."""
    error = (out - target).square()
    mean = error.mean() if mask is None else (error * mask).sum() / (mask.sum() * 3)
    return float(-10 * torch.log10(mean))


@torch.no_grad()
def measure(
    model: AutoencoderKLMiniMaxH3, maker: SampleMaker, scale: int, clips: int, noise: float
) -> tuple[float, float]:
    """(PSNR of everything, PSNR of sprite pixels) with `noise` on the normalised latents."""
    maker.rng.seed(123)
    mean, std = statistics(model)
    generator = torch.Generator().manual_seed(3)
    whole, sprites = [], []
    for _ in range(clips):
        latents, target, cover = maker.batch(scale, 1)
        latents = latents + noise * torch.randn(latents.shape, generator=generator)
        out = decode(model.decoder, latents * std + mean, torch.bfloat16)[:, :, KEPT_FRAMES]
        out, target = vae.restore_pixels(out), vae.restore_pixels(target)
        whole.append(psnr(out, target))
        sprites.append(psnr(out, target, (cover > 0.02).float()))
    return float(np.mean(whole)), float(np.mean(sprites))


def statistics(model: AutoencoderKLMiniMaxH3) -> tuple[Tensor, Tensor]:
    """Latent mean and std as (1, C, 1, 1, 1)."""
    return tuple(
        torch.tensor(x).view(1, -1, 1, 1, 1) for x in (model.config.latents_mean, model.config.latents_std)
    )


def new_vae(work: Path) -> AutoencoderKLMiniMaxH3:
    """The VAE with its closed-form encoder and a PCA decoder."""
    levels, mean, std = dataset.load_encoder(work)
    torch.manual_seed(0)
    model = vae.build_vae(mean, std)
    vae.write_encoder(model, levels)
    scenes = world.training_scenes()[:: len(world.training_scenes()) // 120]
    rows = np.concatenate([dataset.sample_patches(scenes, scale, 40, seed=3)[0] for scale in (1, 2)])
    start_decoder(model, vae.encoder_matrix(levels), rows.astype(np.float32))
    return model


def load_vae(work: Path) -> AutoencoderKLMiniMaxH3:
    """The VAE with the trained decoder of WORK/decoder.pt, or the PCA decoder when there is none."""
    if not (work / "decoder.pt").exists():
        return new_vae(work)
    levels, mean, std = dataset.load_encoder(work)
    model = vae.build_vae(mean, std)
    vae.write_encoder(model, levels)
    model.decoder.load_state_dict(torch.load(work / "decoder.pt", weights_only=True))
    return model


def save_decoder(work: Path, state: dict[str, Tensor]) -> None:
    part = work / "decoder.part"
    torch.save(state, part)
    part.replace(work / "decoder.pt")


def train(work: Path, minutes: float, resume: bool, seed: int, final_places: bool) -> None:
    """Train for so many minutes with a linear decay over the last half; keeps an average of the weights."""
    model = load_vae(work) if resume else new_vae(work)
    maker, judge = SampleMaker(work, seed, final_places), SampleMaker(work, 0, final_places)
    decoder = model.decoder
    blocks = [p for n, p in decoder.named_parameters() if "transformer_blocks" in n and p.ndim == 2]
    ends = [decoder.proj_in.weight, decoder.proj_in.bias, decoder.proj_out.weight, decoder.proj_out.bias]
    known = {id(p) for p in (*blocks, *ends)}
    small = [p for p in decoder.parameters() if id(p) not in known]
    muon = Muon(blocks, Team(0, 1, None, torch.empty(0), torch.zeros(sum(p.numel() for p in blocks))))
    groups = [{"params": ends, "base": 5e-4}, {"params": small, "base": 1e-3}]
    adam = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0)
    average = {name: p.detach().clone() for name, p in decoder.state_dict().items()}
    mean, std = statistics(model)
    rng = random.Random(seed)
    start = last = time.monotonic()
    step = 0
    while (progress := (time.monotonic() - start) / (60 * minutes)) < 1:
        factor = min(1.0, (step + 1) / 50) * min(1.0, max(0.02, 2 * (1 - progress)))
        latents, target, cover = maker.batch(2, 1) if rng.random() < LARGE_SHARE else maker.batch(1, 2)
        level = torch.rand(len(latents), 1, 1, 1, 1) ** 2 * MOST_NOISE
        noisy = latents + level * torch.randn_like(latents)
        out = decode(decoder, noisy * std + mean, torch.bfloat16)[:, :, KEPT_FRAMES]
        loss = reconstruction_loss(out, target, cover)
        decoder.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        muon.step(5e-3 * factor)
        for group in adam.param_groups:
            group["lr"] = group["base"] * factor
        adam.step()
        step += 1
        decay = min(0.995, (1 + step) / (10 + step))
        for name, p in decoder.state_dict().items():
            average[name].lerp_(p, 1 - decay)
        if time.monotonic() - last > 180:
            last = time.monotonic()
            report(model, average, judge, step, loss.item())
            save_decoder(work, average)
    report(model, average, judge, step, loss.item())
    save_decoder(work, average)


def report(
    model: AutoencoderKLMiniMaxH3, average: dict[str, Tensor], judge: SampleMaker, step: int, loss: float
) -> None:
    """Log the PSNR of the averaged decoder."""
    live = {name: p.detach().clone() for name, p in model.decoder.state_dict().items()}
    model.decoder.load_state_dict(average)
    scores = [measure(model, judge, scale, 5, noise) for scale in (1, 2) for noise in (0.0, 0.2)]
    model.decoder.load_state_dict(live)
    text = ", ".join(f"{whole:.1f}/{sprites:.1f}" for whole, sprites in scores)
    LOG.info(
        "step %d loss %.4f PSNR all/sprites small, small noisy, large, large noisy: %s", step, loss, text
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the VAE decoder.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--final-places", action="store_true", help="only scenes at their final place")
    args = parser.parse_args()
    handlers = [logging.StreamHandler(), logging.FileHandler(args.work / "train_vae.log")]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", handlers=handlers)
    torch.set_num_threads(1)
    train(args.work, args.minutes, args.resume, args.seed, args.final_places)


if __name__ == "__main__":
    main()
