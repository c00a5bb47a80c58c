"""Latents to frames and back: the video VAE of MiniMax-H3, through diffusers' class, in float32.

Latents here are *normalised*, as the transformer sees them; the VAE's own are `z * std + mean` with the
channels' `latents_mean` and `latents_std` of its configuration. Its pixels are ImageNet-normalised RGB.

The decoder works in chunks of time that overlap (17 frames and 5 shared ones for H3) and in tiles of space.
The chunks are walked here, in the arithmetic of diffusers' `AutoencoderKLMiniMaxH3._decode`, so that frames
can be saved as they are made and a decode of hours can be watched and cancelled within one of the decoder's
blocks. Tiling is part of the released model's result and stays on. A number that is not finite is an error,
never a black frame.

An object of `VideoVae` serves one call at a time.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLMiniMaxH3
from safetensors.torch import load_file
from torch import Tensor, nn

from pipeline.canvas import spread
from pipeline.errors import Cancelled, ModelError

if TYPE_CHECKING:
    from pipeline.models import ModelFiles

PIXEL_MEAN, PIXEL_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Progress = Callable[[int, int], bool]
"""Called with units done and units in all; returning True cancels."""


class VideoVae:
    """A video VAE in memory. `model` is diffusers' class; latents are [C, T, h, w], frames uint8 [F, H, W,
    3]."""

    def __init__(self, model: AutoencoderKLMiniMaxH3) -> None:
        self.model = model.eval().requires_grad_(False)
        self._mean = torch.tensor(model.config.latents_mean, dtype=torch.float32).view(-1, 1, 1, 1)
        self._std = torch.tensor(model.config.latents_std, dtype=torch.float32).view(-1, 1, 1, 1)

    @classmethod
    def open(cls, files: ModelFiles) -> VideoVae:
        """Load the VAE of a model. Raises ModelError naming the file that is missing, damaged or of another
        kind."""
        return cls(_load(files.require("vae")))

    def decode(self, latents: Tensor, progress: Progress | None = None) -> np.ndarray:
        """All frames of `latents`, uint8 [F, H, W, 3]. Raises Cancelled, or ModelError for values not
        finite."""
        return np.concatenate(list(self.pieces(latents, progress)))

    def pieces(self, latents: Tensor, progress: Progress | None = None) -> Iterator[np.ndarray]:
        """The frames of `latents` in order, in pieces of one chunk, each as soon as it is final."""
        frames = self.frame_count(latents.shape[1])
        latents = self._whole_chunks(latents)
        chunks = range(self._chunk_count(latents))
        tail: Tensor | None = None
        done = 0
        for index, clip in zip(chunks, self._clips(latents, chunks, progress), strict=True):
            body, next_tail = self._split(clip)
            if tail is not None:
                body = self.model._blend(tail, body, self.model.frame_overlap, dim=-3)
            tail = next_tail
            last = index == chunks[-1]
            final = body if tail is None or not last else torch.cat([body, tail], dim=2)
            piece = final[:, :, : frames - done]
            done += piece.shape[2]
            yield _to_pixels(piece)

    def live(
        self, latents: Tensor, count: int, frames: int | None = None, progress: Progress | None = None
    ) -> np.ndarray:
        """`count` frames spread over the first `frames` (default: all) of an unfinished estimate, uint8.

        Only chunks that hold one of them are decoded, and the cross-fade between chunks is left out. With
        one chunk (22 frames of H3) this costs a full decode.
        """
        total = self.frame_count(latents.shape[1])
        wanted = spread(total if frames is None else min(frames, total), count)
        latents = self._whole_chunks(latents)
        clip_length, last = self.model.config.clip_length, self._chunk_count(latents) - 1
        homes = [min(frame // clip_length, last) for frame in wanted]
        chunks = sorted(set(homes))
        decoded: dict[int, Tensor] = {}
        for chunk, clip in zip(chunks, self._clips(latents, chunks, progress), strict=True):
            decoded[chunk] = torch.cat([part for part in self._split(clip) if part is not None], dim=2)
        places = [(home, frame - home * clip_length) for home, frame in zip(homes, wanted, strict=True)]
        return _to_pixels(torch.cat([decoded[home][:, :, at : at + 1] for home, at in places], dim=2))

    def encode(self, frames: np.ndarray, progress: Progress | None = None) -> Tensor:
        """Normalised latents [C, T, h, w] of uint8 frames [F, H, W, 3]: the posterior's mode, nothing
        sampled."""
        pixels = torch.from_numpy(np.ascontiguousarray(frames)).permute(3, 0, 1, 2)[None].float() / 255.0
        pixels = (pixels - _pixel_constant(PIXEL_MEAN)) / _pixel_constant(PIXEL_STD)
        encoder = self.model.encoder
        runs = -(-frames.shape[0] // self.model.config.clip_length) * self._tile_count(*frames.shape[1:3])
        with torch.inference_mode(), _watched(encoder.down_blocks, runs, progress):
            latents = self.model.encode(pixels).latent_dist.mode()[0]
        _require_finite(latents, "Encoding the preview")
        return ((latents - self._mean) / self._std).clone()

    def frame_count(self, latent_frames: int) -> int:
        """Frames that `latent_frames` stand for: the first latent of each chunk covers fewer than the
        others."""
        ratio, chunk = self.model.temporal_compression_ratio, self.model.tokens_chunk_size
        first = self.model.config.clip_length % ratio or ratio
        return sum(ratio if index % chunk else first for index in range(latent_frames))

    def _whole_chunks(self, latents: Tensor) -> Tensor:
        """Repeat the last latent until the decoder's chunks are whole; it makes nothing of fewer than one
        chunk."""
        count, chunk, overlap = latents.shape[1], self.model.tokens_chunk_size, self.model.token_overlap
        whole = chunk * max(1, -(-(count - overlap) // chunk)) + overlap
        return torch.cat([latents, latents[:, -1:].expand(-1, whole - count, -1, -1)], dim=1)

    def _chunk_count(self, latents: Tensor) -> int:
        return (latents.shape[1] - self.model.token_overlap) // self.model.tokens_chunk_size

    def _clips(self, latents: Tensor, chunks: Iterable[int], progress: Progress | None) -> Iterator[Tensor]:
        """Raw decoder output [1, 3, frames, H, W] of each of `chunks`."""
        chunks = list(chunks)
        ratio, size = self.model.spatial_compression_ratio, self.model.tokens_chunk_size
        own = (latents.float() * self._std + self._mean)[None]
        runs = len(chunks) * self._tile_count(own.shape[-2] * ratio, own.shape[-1] * ratio)
        with _watched(self.model.decoder.transformer_blocks, runs, progress):
            for chunk in chunks:
                start = chunk * size
                with torch.inference_mode():
                    part = own[:, :, start : start + size + self.model.token_overlap]
                    clip = self.model._decode_clip(part)
                yield clip

    def _split(self, clip: Tensor) -> tuple[Tensor, Tensor | None]:
        """A chunk's own frames, and those it shares with the next one (None for a VAE without overlap)."""
        padding = self.model.frame_pre_padding
        own = self.model.tokens_chunk_size * self.model.temporal_compression_ratio
        tail = clip[:, :, own + padding :] if self.model.config.token_drop > 0 else None
        return clip[:, :, padding:own], tail

    def _tile_count(self, height: int, width: int) -> int:
        model = self.model
        rows = model._split_tiles(height, model.tile_sample_min_height, model.tile_sample_min_overlap_height)
        columns = model._split_tiles(width, model.tile_sample_min_width, model.tile_sample_min_overlap_width)
        return len(rows[0]) * len(columns[0])


def fit(frames: np.ndarray, width: int, height: int, count: int) -> np.ndarray:
    """Frames uint8 [F, h, w, 3] made to fill `width` x `height` in `count` frames, uint8.

    Enlarged (antialiased bicubic) until both sides are covered, then cropped to the centre, so nothing is
    squeezed. Time is stretched: between frames, neighbours are mixed linearly.
    """
    pixels = torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 3, 1, 2)
    # One frame at a time: all frames of a large clip in float32 would take gigabytes.
    fitted = [_cover(frame, width, height) for frame in _retimed(pixels, count)]
    return torch.stack(fitted).permute(0, 2, 3, 1).contiguous().numpy()


def _retimed(pixels: Tensor, count: int) -> Iterator[Tensor]:
    last = pixels.shape[0] - 1
    for place in torch.linspace(0, last, count).tolist():
        before = int(place)
        yield torch.lerp(pixels[before].float(), pixels[min(before + 1, last)].float(), place - before)


def _cover(frame: Tensor, width: int, height: int) -> Tensor:
    """[3, h, w] float to uint8 [3, height, width]."""
    scale = max(width / frame.shape[2], height / frame.shape[1])
    size = max(height, round(frame.shape[1] * scale)), max(width, round(frame.shape[2] * scale))
    large = F.interpolate(frame[None], size=size, mode="bicubic", antialias=True, align_corners=False)[0]
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    return large[:, top : top + height, left : left + width].round().clamp(0, 255).to(torch.uint8)


def _load(folder: Path) -> AutoencoderKLMiniMaxH3:
    """Build the class without drawing weights it would only throw away, then take those of the file."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    with torch.device("meta"):
        model = AutoencoderKLMiniMaxH3.from_config(config)
    # The decoder's rotary frequencies are computed, not stored.
    width = int(model.config.decoder_attention_head_dim * model.config.decoder_rope_dim_ratio)
    model.decoder.rope = type(model.decoder.rope)(width, theta=model.config.decoder_rope_theta)
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            found.update(load_file(path))
        except Exception as error:
            raise ModelError(
                f"{path} cannot be read and may be cut short ({error}): copy it again."
            ) from error
    expected = model.state_dict()
    for name, like in expected.items():
        if name not in found or found[name].shape != like.shape:
            raise ModelError(
                f"The video VAE in {folder} does not fit its config.json: look at tensor {name}."
            )
    unknown = sorted(set(found) - set(expected) - {"decoder.mask_token"})
    if unknown:
        raise ModelError(f"The video VAE in {folder} has a tensor that is not understood, {unknown[0]}.")
    weights = {name: found[name].to(torch.float32) for name in expected}
    model.load_state_dict(weights, assign=True)
    _drop_idle_branches(model)
    return model


def _drop_idle_branches(model: AutoencoderKLMiniMaxH3) -> None:
    """Leave out residual branches of the encoder that end in a convolution of zeros: they add exactly
    nothing.

    An encoder in closed form (Firefly's) has nothing but shortcuts, and computing the branches takes most of
    its time.
    """
    for block in model.encoder.down_blocks:
        for index, resnet in enumerate(block.resnets):
            if not resnet.conv2.weight.any() and not resnet.conv2.bias.any():
                block.resnets[index] = resnet.conv_shortcut or nn.Identity()


@contextlib.contextmanager
def _watched(blocks: nn.ModuleList, runs: int, progress: Progress | None) -> Iterator[None]:
    """Report each of `runs` passes through `blocks` block by block, and cancel when `progress` says so."""
    if progress is None:
        yield
        return
    total, done = runs * len(blocks), 0

    def started(module: nn.Module, inputs: tuple) -> None:
        nonlocal done
        if progress(done, total):
            raise Cancelled
        done += 1

    hooks = [block.register_forward_pre_hook(started) for block in blocks]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    progress(total, total)


def _to_pixels(raw: Tensor) -> np.ndarray:
    """[1, 3, F, H, W] in the VAE's pixel space to uint8 [F, H, W, 3]."""
    _require_finite(raw, "Decoding")
    pixels = (raw[0].float() * _pixel_constant(PIXEL_STD) + _pixel_constant(PIXEL_MEAN)).clamp(0, 1)
    return (pixels * 255.0).round().to(torch.uint8).permute(1, 2, 3, 0).contiguous().numpy()


def _pixel_constant(values: tuple[float, float, float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).view(3, 1, 1, 1)


def _require_finite(values: Tensor, phase: str) -> None:
    if not torch.isfinite(values).all():
        raise ModelError(
            f"{phase} gave numbers that are not finite: the latents or the video VAE are damaged."
        )
