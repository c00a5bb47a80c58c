"""Muon for the block matrices and AdamW for everything else, with the work of Muon shared by two processes.

Gradients and Muon's updates go through shared memory: on one machine that is a copy and a barrier.
"""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.synchronize import Barrier

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


@torch.no_grad()
def orthogonalise(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """Nearest semi-orthogonal matrices of a stack (K, m, n), by Newton-Schulz."""
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).to(dtype)
    out = []
    for matrix in x:
        y = matrix
        for _ in range(NEWTON_SCHULZ_STEPS):
            gram = y @ y.t()
            y = a * y + (b * gram + c * gram @ gram) @ y
        out.append(y)
    stacked = torch.stack(out).float()
    return stacked.transpose(1, 2) if tall else stacked


@dataclass(frozen=True)
class Team:
    """The processes that train together."""

    rank: int
    size: int
    barrier: Barrier
    gradients: Tensor  # shared, (size, parameters)
    updates: Tensor  # shared, (matrix parameters,)

    def average(self, parameters: list[nn.Parameter]) -> None:
        """Replace every gradient by the mean over all processes."""
        if self.size == 1:
            return
        flat = torch.cat(
            [(p.grad if p.grad is not None else torch.zeros_like(p)).reshape(-1) for p in parameters]
        )
        self.gradients[self.rank].copy_(flat)
        self.barrier.wait()
        mean = self.gradients.mean(0)
        self.barrier.wait()
        offset = 0
        for p in parameters:
            p.grad = mean[offset : offset + p.numel()].view_as(p)
            offset += p.numel()


class Muon:
    """Nesterov momentum, orthogonalised; each process does every size-th matrix and reads the rest."""

    def __init__(
        self, matrices: list[nn.Parameter], team: Team, momentum: float = 0.95, decay: float = 0.02
    ) -> None:
        self.matrices = matrices
        self.team = team
        self.momentum = momentum
        self.decay = decay
        self.buffers = [torch.zeros_like(p) for p in matrices]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        offset = 0
        spans = []
        for index, (p, buffer) in enumerate(zip(self.matrices, self.buffers, strict=True)):
            buffer.lerp_(p.grad, 1 - self.momentum)
            span = slice(offset, offset + p.numel())
            spans.append(span)
            offset += p.numel()
            if index % self.team.size == self.team.rank:
                look_ahead = torch.lerp(p.grad, buffer, self.momentum)
                update = orthogonalise(look_ahead[None], torch.bfloat16)[0]
                self.team.updates[span] = (update * max(1.0, p.shape[0] / p.shape[1]) ** 0.5).reshape(-1)
        if self.team.size > 1:
            self.team.barrier.wait()
        for p, span in zip(self.matrices, spans, strict=True):
            p.mul_(1 - rate * self.decay).add_(self.team.updates[span].view_as(p), alpha=-rate)
        if self.team.size > 1:
            self.team.barrier.wait()
