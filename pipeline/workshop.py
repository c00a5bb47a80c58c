"""The models of one preset, kept open between jobs so that a second preview starts at once.

The denoiser is a mapped file, whose memory the system takes back when it needs it, so it may always stay
open. The text encoder and the VAE live in memory: they stay only where they are small beside it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pipeline import models
from pipeline.engine import Model
from pipeline.errors import ModelError
from pipeline.machine import memory_bytes, require_memory
from pipeline.plan import missing_sentence
from pipeline.presets import Preset
from pipeline.text import Conditioning, TextEncoder
from pipeline.vae import VideoVae

if TYPE_CHECKING:
    from pipeline.models import ModelFiles

log = logging.getLogger(__name__)

CAPTIONS_KEPT = 16
"""Conditionings kept in memory, longer than their encoder may stay; one of H3 is about 2 MB."""
ENCODER_SHARE, VAE_SHARE = 1 / 32, 1 / 4
"""Shares of the installed memory a model may hold between its uses."""


@dataclass
class _Open:
    """What is open now; a model of another folder or thread count replaces it."""

    files: ModelFiles
    threads: int
    model: Model | None = None
    encoder: TextEncoder | None = None
    vae: VideoVae | None = None


class Workshop:
    """Opens models on demand. Used by the worker thread only."""

    def __init__(self) -> None:
        self._open: _Open | None = None
        self._captions: OrderedDict[str, Conditioning] = OrderedDict()

    def use(self, preset: Preset, threads: int) -> ModelFiles:
        """Turn to a preset's models; raises `ModelError` that lists every missing file."""
        files = models.find(preset.model, preset.files)
        if files.missing:
            raise ModelError(" ".join(missing_sentence(preset, entry) for entry in files.missing))
        torch.set_num_threads(threads)
        if self._open is None or (self._open.files, self._open.threads) != (files, threads):
            self.close()
            self._open = _Open(files, threads)
        return files

    def warm(self, preset: Preset, threads: int) -> None:
        """Open what fits to stay open, before anybody asks."""
        self.use(preset, threads)
        self.denoiser()
        if self._stays("text_encoder", ENCODER_SHARE):
            self._encoder()
        if self.keeps_vae():
            self.vae()

    def is_warm(self) -> bool:
        """Whether the denoiser is open already."""
        return self._open is not None and self._open.model is not None

    def denoiser(self) -> Model:
        """The engine's model."""
        current = self._current()
        if current.model is None:
            current.model = Model.open(current.files.transformer, threads=current.threads)
        return current.model

    def caption(self, prompt: str) -> Conditioning:
        """Text rows of a prompt; the latest prompts are remembered."""
        if prompt not in self._captions:
            self._captions[prompt] = self._encoder().encode(prompt)
            if len(self._captions) > CAPTIONS_KEPT:
                self._captions.popitem(last=False)
        self._captions.move_to_end(prompt)
        return self._captions[prompt]

    def rest_encoder(self) -> None:
        """The captions are read: let go of a text encoder too large to stay."""
        current = self._current()
        if current.encoder is not None and not self._stays("text_encoder", ENCODER_SHARE):
            current.encoder = None

    def vae(self) -> VideoVae:
        """The video VAE."""
        current = self._current()
        if current.vae is None:
            require_memory(current.files.sizes.get("vae", 0), "The video VAE")
            current.vae = VideoVae.open(current.files)
        return current.vae

    def keeps_vae(self) -> bool:
        """Whether the VAE may stay in memory beside the denoiser, as live frames need."""
        return self._stays("vae", VAE_SHARE)

    def rest_vae(self) -> None:
        """Let go of a VAE too large to stay."""
        if not self.keeps_vae():
            self._current().vae = None

    def close(self) -> None:
        """Let go of everything."""
        if self._open is not None and self._open.model is not None:
            self._open.model.close()
        self._open = None
        self._captions.clear()

    def _encoder(self) -> TextEncoder:
        current = self._current()
        if current.encoder is None:
            require_memory(current.files.sizes.get("text_encoder", 0), "The text encoder")
            current.encoder = TextEncoder.open(current.files)
        return current.encoder

    def _current(self) -> _Open:
        assert self._open is not None, "use() comes first"
        return self._open

    def _stays(self, role: str, share: float) -> bool:
        installed, _ = memory_bytes()
        return installed == 0 or self._current().files.sizes.get(role, 0) <= installed * share
