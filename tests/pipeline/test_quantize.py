"""The quantizers in C: what they write, as the gguf package reads it, and how much error is left."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from pipeline import engine
from pipeline.errors import EngineError

TYPES = ("Q8_0", "Q4_0", "Q6_K")


def gaussian(rows: int, columns: int, seed: int = 0, scale: float = 0.02) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns), dtype=np.float32) * np.float32(scale)


def read_back(data: np.ndarray, name: str) -> np.ndarray:
    return quants.dequantize(data, GGMLQuantizationType[name])


def relative_error(written: np.ndarray, values: np.ndarray) -> float:
    return float(
        np.linalg.norm(written.astype(np.float64) - values) / np.linalg.norm(values.astype(np.float64))
    )


def rounded_q6_k(values: np.ndarray) -> np.ndarray:
    """Q6_K with scales from the largest value of each group, no search: what the search has to beat."""
    groups = values.reshape(-1, 16, 16).astype(np.float64)
    peak = np.take_along_axis(groups, np.abs(groups).argmax(-1, keepdims=True), -1)
    scale = peak / -32
    largest = np.take_along_axis(scale, np.abs(scale).argmax(1, keepdims=True), 1)
    step = np.float16(largest / -128).astype(np.float64)
    bytes_ = np.clip(np.rint(scale / step), -128, 127)
    levels = np.clip(np.rint(groups / (step * bytes_)), -32, 31)
    return (levels * step * bytes_).reshape(values.shape)


@pytest.mark.parametrize("name", TYPES)
def test_shape_and_bytes(name: str) -> None:
    values = gaussian(3, 512)
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    written = engine.quantize_rows(name, values)
    assert written.dtype == np.uint8
    assert written.shape == (3, 512 // block * size)


def test_q8_0_equals_the_gguf_package() -> None:
    values = gaussian(64, 288, scale=0.3)
    expected = quants.quantize(values, GGMLQuantizationType.Q8_0)
    assert np.array_equal(engine.quantize_rows("Q8_0", values), expected)


def test_error_on_gaussian_weights() -> None:
    """Measured: Q8_0 0.00535, Q6_K 0.0173 (rounding alone 0.0183), Q4_0 0.0810 (the gguf package 0.0859)."""
    values = gaussian(256, 2048)
    error = {
        name: relative_error(read_back(engine.quantize_rows(name, values), name), values) for name in TYPES
    }
    rounded = relative_error(rounded_q6_k(values), values)
    packed = relative_error(read_back(quants.quantize(values, GGMLQuantizationType.Q4_0), "Q4_0"), values)
    assert 0.0050 < error["Q8_0"] < 0.0056
    assert 0.0165 < error["Q6_K"] < 0.0178
    assert 0.078 < error["Q4_0"] < 0.084
    assert error["Q6_K"] < 0.96 * rounded
    assert error["Q4_0"] < 0.96 * packed


@pytest.mark.parametrize("name", ["Q4_0", "Q6_K"])
@pytest.mark.parametrize("shape", ["outlier", "constant", "one value", "uniform", "heavy tail"])
def test_no_group_is_worse_than_its_step_allows(name: str, shape: str) -> None:
    rng = np.random.default_rng(5)
    values = gaussian(8, 512, seed=4)
    if shape == "outlier":
        values[:, ::37] = 3.0
    elif shape == "constant":
        values[:] = -0.37
    elif shape == "one value":
        values[:] = 0
        values[:, 5::64] = 0.25
    elif shape == "uniform":
        values = rng.uniform(-1, 1, (8, 512)).astype(np.float32)
    else:
        values = rng.standard_t(2, (8, 512)).astype(np.float32)
    width, steps = (32, 8) if name == "Q4_0" else (16, 32)
    groups = values.reshape(-1, width)
    error = np.abs(read_back(engine.quantize_rows(name, values), name).reshape(-1, width) - groups)
    peak = np.abs(groups).max(1)
    # One and a half steps of a group, and for Q6_K half a unit of its 8-bit scale at full level.
    coarse = np.repeat(np.abs(values).reshape(8, -1, 256).max(-1).reshape(-1), 256 // width) / 255
    assert (error.max(1) <= 1.5 * peak / steps + (coarse if name == "Q6_K" else 0)).all()


@pytest.mark.parametrize("name", TYPES)
def test_zeros_stay_zeros(name: str) -> None:
    values = np.zeros((2, 512), np.float32)
    values[1, 256:] = 1.0
    written = read_back(engine.quantize_rows(name, values), name)
    assert not written[:, :256].any() and not written[0].any()
    assert np.allclose(written[1, 256:], 1.0, rtol=0.02)


@pytest.mark.parametrize("scale", [1e-5, 1e-4, 1e-3, 1.0, 1e3])
def test_small_weights_keep_their_precision(scale: float) -> None:
    """At 1e-4 and below the half precision scale is subnormal. Q8_0 rounds it as gguf does and pays for it;
    the others choose their levels for the scale as stored."""
    values = gaussian(16, 1024, scale=1.0) * np.float32(scale)
    error = {
        name: relative_error(read_back(engine.quantize_rows(name, values), name), values) for name in TYPES
    }
    assert error["Q4_0"] < 0.083
    assert error["Q6_K"] < (0.0179 if scale >= 1e-4 else 0.022)
    assert error["Q8_0"] < (0.0056 if scale >= 1e-3 else 0.012 if scale >= 1e-4 else 0.1)


@pytest.mark.parametrize("name", TYPES)
def test_tiny_and_large_values_stay_finite(name: str) -> None:
    for scale in (1e-44, 1e-20, 1e-9, 1e5):
        values = gaussian(2, 512, scale=1.0).clip(-2, 2) * np.float32(scale)
        written = read_back(engine.quantize_rows(name, values), name)
        assert np.isfinite(written).all()
        assert np.abs(written).max() <= 1.6 * np.abs(values).max() + 1e-6


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_values_that_cannot_be_stored_are_refused(name: str, bad: float) -> None:
    values = gaussian(4, 256)
    values[2, 77] = bad
    with pytest.raises(EngineError, match=r"Row 2 .* not finite"):
        engine.quantize_rows(name, values)


def test_rows_of_partial_blocks_are_refused() -> None:
    with pytest.raises(EngineError, match=r"288 values .* 256"):
        engine.quantize_rows("Q6_K", gaussian(1, 288))


def test_rows_do_not_depend_on_their_neighbours() -> None:
    values = gaussian(9, 768)
    for name in TYPES:
        whole = engine.quantize_rows(name, values)
        apart = np.concatenate([engine.quantize_rows(name, values[i : i + 1]) for i in range(9)])
        assert np.array_equal(whole, apart)
