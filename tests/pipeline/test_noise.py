"""Noise: white and normal at every size, and of the same composition at every size."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pipeline.errors import RequestError
from pipeline.noise import LOW, audio_noise, dct_matrix, noise

SMALL, LARGE = (24, 7, 7, 12), (24, 12, 24, 40)


def low_frequencies(field: torch.Tensor, size: tuple[int, int, int]) -> torch.Tensor:
    out = field.double()
    for axis, keep in zip((1, 2, 3), size, strict=True):
        matrix = torch.from_numpy(dct_matrix(out.shape[axis])[:keep])
        out = torch.movedim(torch.movedim(out, axis, -1) @ matrix.T, -1, axis)
    return out


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return torch.corrcoef(torch.stack([a.flatten().double(), b.flatten().double()]))[0, 1].item()


def test_the_transform_is_orthonormal():
    for size in (1, 2, 7, 40):
        matrix = torch.from_numpy(dct_matrix(size))
        torch.testing.assert_close(
            matrix @ matrix.T, torch.eye(size, dtype=torch.float64), rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("shape", [SMALL, LARGE, (64, 2, 5, 3), (24, 7, 40, 14)])
def test_values_are_standard_normal(shape):
    field = torch.stack([noise(seed, shape) for seed in range(8)]).double()
    count = field.numel()
    assert field.dtype == torch.float64
    assert abs(field.mean().item()) < 4 / count**0.5
    assert abs(field.var().item() - 1) < 4 * (2 / count) ** 0.5
    assert abs((field**4).mean().item() - 3) < 4 * (96 / count) ** 0.5
    assert noise(0, shape).dtype == torch.float32


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_neighbours_are_uncorrelated(axis):
    field = torch.stack([noise(seed, LARGE) for seed in range(4)])
    size = field.shape[axis + 1]
    ahead = field.narrow(axis + 1, 1, size - 1)
    behind = field.narrow(axis + 1, 0, size - 1)
    assert abs(correlation(ahead, behind)) < 4 / ahead.numel() ** 0.5


def test_variance_is_even_over_the_picture():
    field = torch.stack([noise(seed, LARGE) for seed in range(40)]).double()
    per_place = field.var(dim=(0, 1, 2))  # [h, w], each over 40 * 24 * 12 values
    spread = 4.5 * (2 / (40 * 24 * 12)) ** 0.5
    assert (per_place - 1).abs().max().item() < spread


def test_low_frequencies_are_the_same_numbers_at_every_size():
    shared = (7, 7, 12)
    small = low_frequencies(noise(5, SMALL), shared)
    torch.testing.assert_close(small, low_frequencies(noise(5, LARGE), shared), rtol=0, atol=1e-5)
    portrait = low_frequencies(noise(5, (24, 7, 24, 14)), (7, 12, 12))
    torch.testing.assert_close(portrait[:, :, :7], small, rtol=0, atol=1e-5)


def test_the_averaged_render_noise_looks_like_the_preview_noise():
    preview = noise(11, (24, 7, 12, 12))
    render = noise(11, (24, 7, 48, 48))
    averaged = F.avg_pool2d(render, 4) * 4  # averaging 16 values divides the deviation by 4
    assert correlation(averaged, preview) > 0.75
    half = (7, 6, 6)
    assert correlation(low_frequencies(averaged, half), low_frequencies(preview, half)) > 0.93
    assert abs(correlation(F.avg_pool2d(noise(12, (24, 7, 48, 48)), 4), preview)) < 0.05


def test_high_frequencies_belong_to_the_size():
    a, b = noise(3, (8, 7, 24, 40)), noise(3, (8, 7, 24, 48))
    high = low_frequencies(a, (7, 24, 40))[:, :, LOW[1] :], low_frequencies(b, (7, 24, 40))[:, :, LOW[1] :]
    assert abs(correlation(*high)) < 0.03


def test_seeds_reproduce_and_use_all_their_bits():
    assert torch.equal(noise(2**64 - 1, SMALL), noise(2**64 - 1, SMALL))
    for other in (0, 1, 2**32 + 1, 2**63 + 1, 2**64 - 1):
        assert other == 1 or abs(correlation(noise(1, SMALL), noise(other, SMALL))) < 0.03


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True, None])
def test_other_seeds_are_refused(seed):
    with pytest.raises(RequestError) as caught:
        noise(seed, SMALL)
    assert caught.value.field == "seed"


def test_audio_noise_is_its_own_stream():
    rows = audio_noise(4, 37, 32)
    assert rows.shape == (74, 32)
    assert rows.dtype == torch.float32
    assert torch.equal(rows, audio_noise(4, 37, 32))
    assert abs(rows.std().item() - 1) < 0.06
    assert abs(correlation(rows, noise(4, (74, 1, 4, 8)))) < 0.1
