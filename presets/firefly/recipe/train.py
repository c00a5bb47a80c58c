"""Train the denoiser, and the text encoder with it, in two single-thread processes on a CPU.

Usage: python -m recipe.train WORK --minutes 20 --kind 1:7:6:0.6 --kind 1:1:32:0.4 [--resume] [--decay-from
0.55]
A kind is scale:latent frames:samples:share. Every run writes WORK/checkpoint.pt (resumable) and
WORK/train.log.
"""

from __future__ import annotations

import argparse
import copy
import logging
import math
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.multiprocessing as mp
from diffusers import MiniMaxH3Transformer3DModel
from torch import Tensor, nn
from transformers import AutoTokenizer

from recipe import forward
from recipe.batches import BatchMaker, Kind
from recipe.gate import gate
from recipe.muon import Muon, Team
from recipe.text_encoder import Qwen3VLTextModel, hidden_states

LOG = logging.getLogger("train")
SPRITE_LOSS = 6.0
KEPT_TIMES = (0.25, 0.75)
LEAST_SIGMA = 1e-3
DENOISER_CONFIG = {
    "num_attention_heads": 4,
    "attention_head_dim": 64,
    "hidden_size": 256,
    "num_layers": 6,
    "num_refiner_layers": 2,
    "ffn_dim": 512,
    "in_channels": 64,
    "audio_in_channels": 4,
    "patch_size": (1, 1, 1),
    "text_dim": 192,
    "freq_dim": 64,
    "time_embed_hidden_dim": 64,
    "time_embed_dim": 64,
    "rope_freq_dim": 10,
}


@dataclass
class Options:
    """One training run."""

    work: Path
    minutes: float
    kinds: list[Kind]
    resume: bool = False
    decay_from: float = 0.55
    muon_rate: float = 6e-3
    adam_rate: float = 3e-3
    text_rate: float = 3e-4
    final_rate: float = 0.02
    dropout: float = 0.06
    warmup: int = 20
    processes: int = 2
    gate_every: float = 240.0
    save_every: float = 60.0
    ema_decay: float = 0.998
    final_places: bool = False


def build_denoiser() -> MiniMaxH3Transformer3DModel:
    """A fresh denoiser: gates half open, velocity zero."""
    model = MiniMaxH3Transformer3DModel(**DENOISER_CONFIG)
    width = model.config.hidden_size
    for block in model.transformer_blocks:
        linear = block.adaln_proj.linear
        nn.init.normal_(linear.weight, std=0.02)
        nn.init.zeros_(linear.bias)
        with torch.no_grad():
            linear.bias.view(3, 6, width)[:, (2, 5)] = 0.5
    nn.init.zeros_(model.proj_out.weight)
    nn.init.zeros_(model.proj_out.bias)
    return model


def split_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """(block matrices for Muon, everything else for AdamW)."""
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        if name.startswith("audio_"):
            continue
        in_block = "transformer_blocks" in name or "refiner_blocks" in name
        (matrices if in_block and parameter.ndim == 2 and "adaln" not in name else others).append(parameter)
    return matrices, others


def draw_times(count: int, generator: torch.Generator) -> Tensor:
    """Training times: 40 % near pure noise (0..0.15), 35 % logit-normal, 25 % uniform."""
    low = torch.rand(count, generator=generator) * 0.15
    middle = torch.sigmoid(torch.randn(count, generator=generator))
    uniform = torch.rand(count, generator=generator)
    pick = torch.rand(count, generator=generator)
    return torch.where(pick < 0.4, low, torch.where(pick < 0.75, middle, uniform))


class Trainer:
    """Models, optimizers and averages of one process."""

    def __init__(self, options: Options, team: Team) -> None:
        self.options, self.team = options, team
        torch.manual_seed(0)
        tokenizer = AutoTokenizer.from_pretrained(options.work / "tokenizer")
        self.denoiser = build_denoiser()
        self.text_model = Qwen3VLTextModel.from_pretrained(options.work / "text_encoder", dtype=torch.float32)
        self.step = 0
        stored = None
        if options.resume:
            stored = torch.load(options.work / "checkpoint.pt", weights_only=True, mmap=True)
            self.denoiser.load_state_dict(stored["denoiser"])
            self.text_model.load_state_dict(stored["text"])
            self.step = stored["step"]
        self.average = copy.deepcopy(nn.ModuleDict({"denoiser": self.denoiser, "text": self.text_model}))
        if stored is not None:
            self.average["denoiser"].load_state_dict(stored["denoiser_ema"])
            self.average["text"].load_state_dict(stored["text_ema"])
        matrices, others = split_parameters(self.denoiser)
        text = list(self.text_model.parameters())
        self.trained = [*matrices, *others, *text]
        self.muon = Muon(matrices, team)
        groups = [{"params": others, "base": options.adam_rate}, {"params": text, "base": options.text_rate}]
        self.adam = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0)
        config = self.denoiser.config
        seed = 1000 * self.step + team.rank
        self.maker = BatchMaker(
            options.work, tokenizer, config.rope_freq_dim, config.rope_theta, seed, options.final_places
        )
        self.shared_rng = random.Random(self.step)
        self.generator = torch.Generator().manual_seed(seed)

    def rate_factor(self, progress: float, local_step: int) -> float:
        """Warm-up, constant, then linear decay; progress 0..1 is of wall time."""
        start = self.options.decay_from
        decay = 1.0 if progress < start else max(0.0, (1 - progress) / (1 - start))
        return min(1.0, (local_step + 1) / self.options.warmup) * max(self.options.final_rate, decay)

    def loss(self) -> Tensor:
        """Velocity error of one batch, sprite rows weighted."""
        kinds = self.options.kinds
        kind = self.shared_rng.choices(kinds, [k.share for k in kinds])[0]
        batch = self.maker.draw(kind, self.shared_rng.random() < self.options.dropout)
        t = draw_times(len(batch.clean), self.generator)
        noise = torch.randn(batch.clean.shape, generator=self.generator)
        start = batch.clean
        if batch.kept is not None:
            # Learn to finish what a preview began: the picture under the noise is the enlarged preview,
            # and the velocity leads from there to the sharp clip.
            start = batch.kept
            low, high = KEPT_TIMES
            t = low + (high - low) * torch.rand(len(t), generator=self.generator)
        noisy = torch.lerp(noise, start, t[:, None, None])
        target = (batch.clean - noisy) / (1 - t[:, None, None]).clamp(min=LEAST_SIGMA)
        states = hidden_states(self.text_model, batch.ids)
        v = forward.velocity(self.denoiser, states, noisy, t, batch.cos, batch.sin, torch.bfloat16)
        weight = 1 + (SPRITE_LOSS - 1) * batch.mask.float()
        error = (v - target).square().mean(-1)
        return (error * weight).sum() / weight.sum()

    def update(self, progress: float, local_step: int) -> float:
        """One optimizer step; returns the loss."""
        for parameter in self.trained:
            parameter.grad = None
        loss = self.loss()
        loss.backward()
        self.team.average(self.trained)
        nn.utils.clip_grad_norm_(self.trained, 2.0)
        factor = self.rate_factor(progress, local_step)
        self.muon.step(self.options.muon_rate * factor)
        for group in self.adam.param_groups:
            group["lr"] = group["base"] * factor
        self.adam.step()
        self.step += 1
        self.update_average()
        return loss.item()

    @torch.no_grad()
    def update_average(self) -> None:
        """Exponential average of the weights; one process keeps it."""
        if self.team.rank != 0:
            return
        decay = min(self.options.ema_decay, (1 + self.step) / (10 + self.step))
        for name, model in (("denoiser", self.denoiser), ("text", self.text_model)):
            ours, theirs = list(self.average[name].parameters()), list(model.parameters())
            torch._foreach_lerp_(ours, theirs, 1 - decay)

    def save(self) -> None:
        """Write the checkpoint atomically."""
        path = self.options.work / "checkpoint.pt"
        part = path.with_suffix(".part")
        state = {
            "step": self.step,
            "denoiser": self.denoiser.state_dict(),
            "text": self.text_model.state_dict(),
            "denoiser_ema": self.average["denoiser"].state_dict(),
            "text_ema": self.average["text"].state_dict(),
        }
        torch.save(state, part)
        part.replace(path)

    def log_gate(self, minutes: float) -> None:
        errors = gate(self.average["denoiser"], self.average["text"], self.maker)
        gap = errors["noun"] / errors["right"] - 1
        text = "  ".join(f"{name} {value:.3f}" for name, value in errors.items())
        LOG.info("gate step %d, %.1f min: %s  noun gap %.0f %%", self.step, minutes, text, 100 * gap)

    def run(self) -> None:
        start = time.monotonic()
        length = self.options.minutes * 60
        last_gate = last_save = start
        losses: list[float] = []
        local = 0
        while True:
            progress = torch.tensor((time.monotonic() - start) / length)
            progress = self.agree(progress)
            if progress >= 1:
                break
            losses.append(self.update(progress, local))
            local += 1
            now = time.monotonic()
            if self.team.rank == 0:
                if local % 100 == 0:
                    mean = sum(losses[-100:]) / len(losses[-100:])
                    LOG.info("step %d loss %.4f, %.2f s a step", self.step, mean, (now - start) / local)
                if now - last_gate > self.options.gate_every:
                    self.log_gate((now - start) / 60)
                    last_gate = now
                if now - last_save > self.options.save_every:
                    self.save()
                    last_save = now
        if self.team.rank == 0:
            self.log_gate(self.options.minutes)
            self.save()
            LOG.info("done after %d steps", local)

    def agree(self, progress: Tensor) -> float:
        """All processes follow the clock of the first one."""
        if self.team.size == 1:
            return progress.item()
        if self.team.rank == 0:
            self.team.updates[-1] = progress
        self.team.barrier.wait()
        return self.team.updates[-1].item()


def worker(rank: int, options: Options, barrier, gradients: Tensor, updates: Tensor) -> None:
    """One training process."""
    # Linux shares the processor between sessions first: two processes in one session would get the share of
    # one.
    if hasattr(os, "setsid"):
        os.setsid()
    torch.set_num_threads(1)
    handlers = [logging.StreamHandler(), logging.FileHandler(options.work / "train.log")]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", handlers=handlers)
    Trainer(options, Team(rank, options.processes, barrier, gradients, updates)).run()


def parse_options() -> Options:
    parser = argparse.ArgumentParser(description="Train the denoiser.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--kind", action="append", required=True, help="scale:latent frames:samples:share")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--decay-from", type=float, default=0.55)
    parser.add_argument("--rate", type=float, default=1.0, help="factor on all learning rates")
    parser.add_argument("--final-rate", type=float, default=0.02)
    parser.add_argument("--ema", type=float, default=0.998)
    parser.add_argument("--final-places", action="store_true", help="only scenes at their final place")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    options = Options(
        work=args.work,
        minutes=args.minutes,
        kinds=[Kind.parse(text) for text in args.kind],
        resume=args.resume,
        decay_from=args.decay_from,
        final_rate=args.final_rate,
        ema_decay=args.ema,
        final_places=args.final_places,
        processes=args.processes,
    )
    options.muon_rate *= args.rate
    options.adam_rate *= args.rate
    options.text_rate *= args.rate
    return options


def main() -> None:
    options = parse_options()
    if not math.isclose(sum(kind.share for kind in options.kinds), 1.0, abs_tol=1e-6):
        raise SystemExit("the shares of all kinds must add up to 1.")
    matrices, others = split_parameters(build_denoiser())
    text = Qwen3VLTextModel.from_pretrained(options.work / "text_encoder")
    total = sum(p.numel() for p in [*matrices, *others, *text.parameters()])
    context = mp.get_context("spawn")
    barrier = context.Barrier(options.processes)
    gradients = torch.zeros(options.processes, total).share_memory_()
    updates = torch.zeros(sum(p.numel() for p in matrices) + 1).share_memory_()
    arguments = (options, barrier, gradients, updates)
    mp.start_processes(worker, arguments, nprocs=options.processes, start_method="spawn")


if __name__ == "__main__":
    main()
