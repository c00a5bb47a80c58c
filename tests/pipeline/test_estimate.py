"""Estimates scale what earlier jobs measured; without a measurement there is none."""

from __future__ import annotations

import json

import pytest

from pipeline.canvas import ModelGeometry, plan
from pipeline.estimate import Denoised, Pixels, Timings, estimate_phases, history, total_seconds
from pipeline.plan import StagePlan

FIREFLY = ModelGeometry(patch=(1, 1, 1), latent_channels=64, has_audio=False)


def stage(width: int, height: int, evaluations: int = 12, guidance: float = 1.5) -> StagePlan:
    return StagePlan("render", plan(width, height, 22, FIREFLY), 12, evaluations, guidance, 0.0)


def measured(**changes: object) -> Timings:
    values = {
        "model": "m",
        "threads": 2,
        "load": 3.0,
        "text": 0.5,
        "denoised": (Denoised(rows=588, passes=24, seconds=12.0, linear=1000.0, quadratic=1.0),),
        "decoded": Pixels(192 * 112 * 22, 2.0),
        "exported": Pixels(192 * 112 * 22, 0.5),
    }
    return Timings(**(values | changes))


def test_nothing_measured_means_no_estimate():
    phases = estimate_phases((stage(192, 112),), [], "m", 2)
    assert phases["denoise"] is None and phases["decode"] is None
    assert total_seconds(phases) is None


def test_the_same_shape_takes_the_same_time():
    phases = estimate_phases((stage(192, 112),), [measured()], "m", 2)
    assert phases["denoise"] == pytest.approx(12.0)
    assert phases["decode"] == pytest.approx(2.0)
    assert total_seconds(phases) == pytest.approx(3.0 + 0.5 + 12.0 + 2.0 + 0.5)


def test_more_rows_cost_the_matrices_once_and_attention_twice():
    phases = estimate_phases((stage(384, 224),), [measured()], "m", 2)
    assert stage(384, 224).canvas.rows == 4 * 588
    growth = (1000 * 4 + 16 * 588) / (1000 + 588)
    assert phases["denoise"] == pytest.approx(12.0 * growth)
    assert phases["decode"] == pytest.approx(8.0)


def test_fewer_evaluations_and_no_guidance_cost_less():
    assert estimate_phases((stage(192, 112, 6),), [measured()], "m", 2)["denoise"] == pytest.approx(6.0)
    assert estimate_phases((stage(192, 112, 12, 1.0),), [measured()], "m", 2)["denoise"] == pytest.approx(6.0)


def test_other_models_and_thread_counts_say_nothing():
    for changes in ({"model": "other"}, {"threads": 1}):
        phases = estimate_phases((stage(192, 112),), [measured(**changes)], "m", 2)
        assert phases["denoise"] is None


def test_a_render_with_its_own_preview_counts_both():
    preview, render = stage(192, 112), stage(384, 224, 6)
    phases = estimate_phases((preview, render), [measured()], "m", 2)
    assert phases["preview"] == pytest.approx(12.0 + 2.0)
    assert set(phases) == {"load", "text", "preview", "denoise", "decode", "export"}


def test_timings_survive_json():
    timings = measured(decoded=None, denoised=())
    assert Timings.from_json(json.loads(json.dumps(timings.to_json()))) == timings
    full = measured()
    assert Timings.from_json(json.loads(json.dumps(full.to_json() | {"phases": {"load": 1.0}}))) == full


def test_rubbish_in_the_outputs_folder_is_no_history(tmp_path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.json").write_text("{}")
    assert history(tmp_path) == []
    assert history(tmp_path / "nowhere") == []
