"""Calling the engine: stopping, wrong calls, closing, and what it says of itself."""

from __future__ import annotations

import gc
import logging
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pipeline import bindings, build, engine
from pipeline.engine import Model
from pipeline.errors import Cancelled, EngineError
from tests.pipeline.h3_files import (
    Layout,
    community_names,
    fixture_gguf,
    fixture_model,
    forward,
    load_case,
    relative_l2,
    write_gguf,
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {letter: fixture_gguf(folder, letter) for letter in "ab"}


# ---- stopping ----


def test_progress_counts_blocks_and_cancels_within_one(models: dict[str, Path]) -> None:
    case = load_case("a_t2va_step1")
    seen: list[tuple[int, int]] = []
    with Model.open(models["a"]) as model:
        with pytest.raises(Cancelled):
            model.prepare(case.layout, case.text, case.timesteps, progress=lambda done, total: done == 1)
        with model.prepare(case.layout, case.text, case.timesteps) as run:
            run.velocity(case.video, case.audio, case.row_timesteps, progress=lambda *args: seen.append(args))
            assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
            names: list[str] = []
            with pytest.raises(Cancelled):
                run.velocity(
                    case.video, case.audio, case.row_timesteps,
                    progress=lambda done, total: done == 1, dump=lambda name, _: names.append(name),
                )  # fmt: skip
            assert "block0_out" in names and "block1_adaln" not in names
            video, _ = run.velocity(case.video, case.audio, case.row_timesteps)
    assert relative_l2(video, case["out.video"]) < 2e-6


def test_what_a_callback_raises_comes_back(models: dict[str, Path]) -> None:
    case = load_case("a_t2va_step1")

    def fail(*_: object) -> bool:
        raise KeyError("mine")

    with Model.open(models["a"]) as model, model.prepare(case.layout, case.text, case.timesteps) as run:
        for options in ({"progress": fail}, {"dump": fail}):
            with pytest.raises(KeyError, match="mine"):
                run.velocity(case.video, case.audio, case.row_timesteps, **options)
        with pytest.raises(KeyError, match="mine"):
            model.prepare(case.layout, case.text, [*case.timesteps, 0.125], progress=fail)
        with pytest.raises(RuntimeError, match="own callback"):
            run.velocity(case.video, case.audio, case.row_timesteps, dump=lambda *_: run.close())
        assert torch.isfinite(run.velocity(case.video, case.audio, case.row_timesteps)[0]).all()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("blocks.1.mlp.fc2.weight", "Block 1 produced a value that is not finite"),
        ("blocks.2.attn.qkv_proj.weight", "Block 2 produced"),
        ("blocks.0.norm1.weight", "Block 0 produced"),
        ("token_refiner.blocks.1.mlp.fc1.weight", "Refiner block 1 produced"),
        ("blocks.1.adaln_proj.linear.weight", "modulation of block 1"),
        ("final_layer.adaln_proj.linear.bias", "modulation of the output layer"),
        ("video_patch_proj.bias", "input projections"),
        ("final_layer.video_out.weight", "output layer"),
    ],
)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_weights_are_reported_by_place(
    name: str, words: str, value: float, tmp_path: Path
) -> None:
    state, config = fixture_model("a")
    tensors = {key: tensor.clone() for key, tensor in community_names(state).items()}
    tensors[name].view(-1)[7] = value
    path = write_gguf(tmp_path / "m.gguf", tensors, config)
    with pytest.raises(EngineError, match=words):
        forward(path, load_case("a_t2va_step1"))


def test_non_finite_inputs_are_refused(models: dict[str, Path]) -> None:
    case = load_case("a_t2va_step1")
    bad = {name: getattr(case, name).clone() for name in ("video", "audio", "text")}
    for tensor in bad.values():
        tensor[0, 0] = float("nan")
    with Model.open(models["a"]) as model, model.prepare(case.layout, case.text, case.timesteps) as run:
        with pytest.raises(EngineError, match="video rows"):
            run.velocity(bad["video"], case.audio, case.row_timesteps)
        with pytest.raises(EngineError, match="audio rows"):
            run.velocity(case.video, bad["audio"], case.row_timesteps)
        with pytest.raises(EngineError, match="text conditioning"):
            model.prepare(case.layout, bad["text"], case.timesteps)


# ---- wrong calls ----


def test_refuses_sequences_that_do_not_add_up(models: dict[str, Path]) -> None:
    case = load_case("a_t2va_step1")

    def changed(**changes: Tensor) -> Layout:
        return Layout(**{**case.layout.__dict__, **changes})

    twice = case.layout.video_indices.clone()
    twice[0] = twice[1]
    outside = case.layout.video_indices.clone()
    outside[3] = 34
    tags = case.layout.token_tags.clone()
    tags[2] = 3
    places = case.layout.position_ids.clone()
    places[4, 1] = float("inf")
    with Model.open(models["a"]) as model:
        for layout, words in (
            (changed(video_indices=twice), "named twice"),
            (changed(video_indices=outside), "outside of the 34"),
            (changed(video_indices=twice[:-1].contiguous()), "are not the 34 rows"),
            (changed(token_tags=tags), "row 2 has tag 3"),
            (changed(position_ids=places), "row 4 has a position"),
        ):
            with pytest.raises(EngineError, match=words):
                model.prepare(layout, case.text, case.timesteps)
        for times in ([], [1.5], [-0.1], [float("nan")]):
            with pytest.raises(EngineError, match=r"[Tt]imestep"):
                model.prepare(case.layout, case.text, times)
        with model.prepare(case.layout, case.text, case.timesteps) as run:
            other = case.row_timesteps.clone()
            other[5] = 0.3
            with pytest.raises(EngineError, match=r"row 5 asks for timestep 0\.3"):
                run.velocity(case.video, case.audio, other)


def test_refuses_tensors_it_would_have_to_copy(models: dict[str, Path]) -> None:
    case = load_case("a_t2va_step1")
    with Model.open(models["a"]) as model, model.prepare(case.layout, case.text, case.timesteps) as run:
        for video in (
            case.video.double(),
            case.video[:-1],
            case.video.t().contiguous().t(),
            case.video.half(),
        ):
            with pytest.raises(ValueError, match=r"video.* must be a contiguous torch.float32 CPU tensor"):
                run.velocity(video, case.audio, case.row_timesteps)


def test_closing_is_safe_in_any_order(models: dict[str, Path]) -> None:
    case = load_case("a_t2va_step1")
    model = Model.open(models["a"])
    run = model.prepare(case.layout, case.text, case.timesteps)
    model.close()
    model.close()
    with pytest.raises(EngineError, match="is closed"):
        model.prepare(case.layout, case.text, case.timesteps)
    with pytest.raises(EngineError, match="is closed"):
        model.describe()
    assert torch.isfinite(run.velocity(case.video, case.audio, case.row_timesteps)[0]).all()
    run.close()
    run.close()
    with pytest.raises(EngineError, match="is closed"):
        run.velocity(case.video, case.audio, case.row_timesteps)
    Model.open(models["a"]).prepare(case.layout, case.text, case.timesteps)  # neither closed by hand
    gc.collect()


# ---- facts ----


def test_every_function_of_the_header_is_typed() -> None:
    header = re.sub(r"/\*.*?\*/", "", (build.SOURCES / "h3.h").read_text(), flags=re.DOTALL)
    declared = dict(re.findall(r"H3_API [\w *]+?(h3_\w+)\(([^)]*)\)", header))
    assert len(declared) == len(re.findall(r"^H3_API ", header, flags=re.MULTILINE))
    assert set(declared) == set(bindings.SIGNATURES)
    for name, (_, arguments) in bindings.SIGNATURES.items():
        listed = declared[name].split(",") if declared[name] != "void" else []
        assert len(arguments) == len(listed), name


def test_describes_itself(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("H3_KERNELS", raising=False)
    with Model.open(models["a"], threads=3) as model:
        facts = model.describe()
    assert facts["threads"] == 3 and facts["note"] == "" and facts["version"]
    assert facts["kernels"] in ("avx512vnni", "avx512", "avx2", "neon", "plain")
    assert engine.describe()["kernels"] == facts["kernels"]
    monkeypatch.setenv("H3_KERNELS", "plain")
    with Model.open(models["a"]) as model:
        assert model.describe()["kernels"] == "plain"
    with pytest.raises(EngineError, match="sse9"):
        Model.open(models["a"], kernels="sse9")
    with pytest.raises(EngineError, match="threads"):
        Model.open(models["a"], threads=100000)


def test_memory_is_counted(models: dict[str, Path]) -> None:
    with Model.open(models["b"]) as model:
        table = 18 * 48 * 2 * 4
        assert model.memory(100, 10, 12) - model.memory(100, 10, 11) > table
        assert model.memory(200, 10, 11) > model.memory(100, 10, 11) > 100 * 4 * (48 + 3 * 256)
        with pytest.raises(EngineError, match="too many"):
            model.memory(2**60, 1, 1)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells what is resident")
def test_modulation_weights_do_not_stay_in_memory(tmp_path: Path) -> None:
    state, config = fixture_model("a")
    tensors = community_names(state)
    width = 4096  # makes AdaLN 60 MB of 61
    for name, tensor in tensors.items():
        if name.endswith("adaln_proj.linear.weight"):
            tensors[name] = torch.full((tensor.shape[0], width), 1e-6)
    tensors["time_embedder.proj_out.weight"] = torch.zeros(width, 48)
    tensors["time_embedder.proj_out.bias"] = torch.zeros(width)
    path = write_gguf(tmp_path / "m.gguf", tensors, config)
    case = load_case("a_t2va_step1")
    with Model.open(path) as model, model.prepare(case.layout, case.text, case.timesteps):
        assert model.config.adaln_bytes > 55e6
        assert resident_bytes(path) < 0.1 * model.config.adaln_bytes


def resident_bytes(path: Path) -> int:
    """Of the mapping of a file in this process."""
    mappings = Path("/proc/self/smaps").read_text()
    found = re.search(rf"{re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", mappings)
    assert found
    return 1024 * int(found.group(1))


def test_pointers_are_logged_for_debugging(models: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    case = load_case("a_t2va_step1")
    with caplog.at_level(logging.DEBUG, logger="pipeline.engine"):
        forward(models["a"], case)
    assert f"video at 0x{case.video.data_ptr():x}, shape [12, 96], torch.float32" in caplog.text
    assert "row_timesteps at 0x" in caplog.text and "text at 0x" in caplog.text
