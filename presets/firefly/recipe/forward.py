"""A training forward of `MiniMaxH3Transformer3DModel` in which every sample has its own time and layout.

The class shares one layout and one time over the batch, which is right for rendering and wasteful for
training. This forward reads the parameters of the class module itself, so there is nothing to convert; with
`compute=torch.float32` it equals the class to rounding error (tests/presets checks this).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipe.attention import attention

VIDEO, TEXT = 0, 1


def rms_norm(x: Tensor, weight: Tensor | float, eps: float) -> Tensor:
    """RMS norm over the last axis in float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate-half on the first 2*half channels. x (B, S, H, d); cos, sin (B, S, 1, half)."""
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def attend(attn: nn.Module, x: Tensor, rotary: tuple[Tensor, Tensor] | None, eps: float) -> Tensor:
    """Self-attention. x (B, S, D) in the compute dtype."""
    dtype = x.dtype
    heads = attn.heads
    weight = torch.cat([attn.to_q.weight, attn.to_k.weight, attn.to_v.weight]).to(dtype)
    query, key, value = F.linear(x, weight).unflatten(-1, (3, heads, -1)).unbind(2)
    query = rms_norm(query, attn.norm_q.weight, eps)
    key = rms_norm(key, attn.norm_k.weight, eps)
    if rotary is not None:
        query, key = rotate(query, *rotary), rotate(key, *rotary)
    out = attention(query.to(dtype), key.to(dtype), value)
    return F.linear(out, attn.to_out[0].weight.to(dtype))


def feed_forward(ff: nn.Module, x: Tensor) -> Tensor:
    """SwiGLU with the class's [value; gate] row order."""
    value, gate = F.linear(x, ff.net[0].proj.weight.to(x.dtype)).chunk(2, dim=-1)
    return F.linear(value * F.silu(gate), ff.net[2].weight.to(x.dtype))


def feed_forward_with_bias(ff: nn.Module, x: Tensor) -> Tensor:
    """SwiGLU of the VAE decoder, whose layers have biases."""
    first, second = ff.net[0].proj, ff.net[2]
    value, gate = F.linear(x, first.weight.to(x.dtype), first.bias.to(x.dtype)).chunk(2, dim=-1)
    return F.linear(value * F.silu(gate), second.weight.to(x.dtype), second.bias.to(x.dtype))


def refine_text(model: nn.Module, states: Tensor, compute: torch.dtype) -> Tensor:
    """Text states (B, N, text_dim) to refined rows (B, N, D) in float32."""
    config = model.config
    x = F.linear(states, model.context_embedder.weight, model.context_embedder.bias)
    for block in model.token_refiner.refiner_blocks:
        normed = rms_norm(x, block.norm1.weight, config.norm_eps).to(compute)
        x = x + attend(block.attn, normed, None, config.qk_norm_eps)
        normed = rms_norm(x, block.norm2.weight, config.norm_eps).to(compute)
        x = x + feed_forward(block.ff, normed)
    return rms_norm(x, model.token_refiner.final_norm.weight, config.final_norm_eps)


def modulation(block: nn.Module, temb: Tensor, text_rows: int, video_rows: int) -> tuple[Tensor, ...]:
    """Six (B, S, D) modulation tensors from silu(temb) (B, E): text rows first, then video rows."""
    linear = block.adaln_proj.linear
    table = F.linear(temb, linear.weight, linear.bias).unflatten(-1, (3, 6, -1))
    text = table[:, TEXT, :, None].expand(-1, -1, text_rows, -1)
    video = table[:, VIDEO, :, None].expand(-1, -1, video_rows, -1)
    return torch.cat([text, video], dim=2).unbind(1)


def velocity(
    model: nn.Module,
    text_states: Tensor,
    video: Tensor,
    time: Tensor,
    cos: Tensor,
    sin: Tensor,
    compute: torch.dtype = torch.float32,
) -> Tensor:
    """Predicted velocity toward the data, (B, V, C) float32.

    text_states (B, N, text_dim); video (B, V, C) noisy latent rows; time (B,); cos, sin (B, N+V, 3*freq_dim).
    All captions of a batch have the same number of tokens, because the class knows no padding.
    """
    config = model.config
    text_rows, video_rows = text_states.shape[1], video.shape[1]
    text = refine_text(model, text_states, compute)
    x = torch.cat([text, F.linear(video, model.proj_in.weight, model.proj_in.bias)], dim=1)
    temb = F.silu(model.time_embedder(model.time_proj(time)))
    rotary = (cos[:, :, None], sin[:, :, None])
    for block in model.transformer_blocks:
        shift1, scale1, gate1, shift2, scale2, gate2 = modulation(block, temb, text_rows, video_rows)
        normed = rms_norm(x, block.norm1.weight, config.norm_eps) * (1 + scale1) + shift1
        x = x + gate1 * attend(block.attn, normed.to(compute), rotary, config.qk_norm_eps)
        normed = rms_norm(x, block.norm2.weight, config.norm_eps) * (1 + scale2) + shift2
        x = x + gate2 * feed_forward(block.ff, normed.to(compute))
    shift, scale = F.linear(temb, model.norm_out.linear.weight, model.norm_out.linear.bias).chunk(2, dim=-1)
    out = rms_norm(x[:, text_rows:], model.norm_out.norm.weight, config.final_norm_eps)
    out = out * (1 + scale[:, None]) + shift[:, None]
    return F.linear(out, model.proj_out.weight, model.proj_out.bias)
