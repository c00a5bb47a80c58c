"""The engine against golden fixtures and against diffusers' own class."""

from __future__ import annotations

import threading
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from pipeline import engine
from pipeline.engine import Model, Run
from pipeline.errors import EngineError
from tests.pipeline.h3_files import (
    FIXTURES,
    Case,
    Layout,
    big_matrices,
    community_names,
    deinterleave,
    fixture_gguf,
    fixture_model,
    forward,
    load_case,
    pack,
    random_model,
    relative_l2,
    unpack,
    write_gguf,
)

CASES = sorted(path.stem.removeprefix("case_") for path in FIXTURES.glob("case_*"))
KERNELS = ["plain", "neon", "avx2", "avx512", "avx512vnni"]
"""From the slowest to the fastest; each processor has some of them."""
FORMATS = [
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
]  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {letter: fixture_gguf(folder, letter) for letter in "ab"}


def runnable(path: Path) -> dict[str, str]:
    """"" for each set of kernels that runs here, else why not."""
    reasons = {}
    for name in KERNELS:
        try:
            Model.open(path, threads=1, kernels=name).close()
            reasons[name] = ""
        except EngineError as error:
            reasons[name] = str(error)
    return reasons


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest, models: dict[str, Path]) -> str:
    """Each set in turn, skipped where the processor lacks it."""
    if reason := runnable(models["a"])[request.param]:
        pytest.skip(reason)
    return request.param


def test_the_fastest_kernels_of_this_processor_are_chosen(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the flags Linux shows, so that a set that is wrongly missing is a failure and not a skip."""
    monkeypatch.delenv("H3_KERNELS", raising=False)
    reasons = runnable(models["a"])
    with Model.open(models["a"]) as model:
        assert model.describe()["kernels"] == [name for name in KERNELS if not reasons[name]][-1]
        assert model.describe()["note"] == ""
    facts = Path("/proc/cpuinfo")
    flags = set(facts.read_text().split()) if facts.exists() else set()
    if "avx2" in flags:
        assert reasons["avx2"] == ""
        wide = {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags
        assert (reasons["avx512"] == "") == wide
        assert (reasons["avx512vnni"] == "") == (wide and "avx512_vnni" in flags)
        assert '"avx512" do not exist' in reasons["avx512"] or wide
    assert reasons["plain"] == "" and '"plain"' in "".join(reasons.values())


# ---- golden fixtures ----


@pytest.mark.parametrize("name", CASES)
def test_matches_golden_outputs(name: str, kernels: str, models: dict[str, Path]) -> None:
    case = load_case(name)
    video, audio = forward(models[name[0]], case, kernels=kernels)
    for result, expected in ((video, case["out.video"]), (audio, case["out.audio"])):
        assert relative_l2(result, expected) < 2e-6
        assert (result - expected[0]).abs().max() < 2e-5


@pytest.mark.parametrize("letter", "ab")
def test_matches_golden_intermediates(letter: str, models: dict[str, Path]) -> None:
    case = load_case(f"{letter}_t2va_step1")
    seen: dict[str, Tensor] = {}
    forward(models[letter], case, dump=lambda name, values: seen.update({name: values.clone()}))
    expected = case.group("mid.")
    assert set(expected) <= set(seen)
    for name in ("rope_cos", "rope_sin"):  # stored twice over, for both channels of a pair
        expected[name] = expected[name].chunk(2, dim=1)[0]
    for name, value in expected.items():
        assert relative_l2(seen[name], value) < 2e-6, name


def test_dumps_every_block_in_order(models: dict[str, Path]) -> None:
    names: list[str] = []
    forward(models["a"], load_case("a_t2va_step1"), dump=lambda name, _values: names.append(name))
    inputs = ["time_proj", "temb", "refined_text", "rope_cos", "rope_sin", "packed_input"]
    parts = ["adaln", "attn_in", "attn_out", "ff_in", "ff_out", "out"]
    assert names == [*inputs, *(f"block{i}_{part}" for i in range(3) for part in parts), "norm_out"]


def test_original_layout_gives_the_same_numbers(models: dict[str, Path], tmp_path: Path) -> None:
    _, config = fixture_model("b")
    original = load_file(FIXTURES / "model_b_original_layout.safetensors")
    path = write_gguf(tmp_path / "o.gguf", deinterleave(original, config["attention_head_dim"]), config)
    case = load_case("b_fl2va_step1")
    results = forward(path, case), forward(models["b"], case)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_follows_a_recorded_trajectory(models: dict[str, Path]) -> None:
    """Three steps with two clocks and two keyframes; only the engine's velocity is ours here."""
    recorded = load_file(FIXTURES / "trajectory_a_fl2va.safetensors")
    layout = load_case("a_fl2va_step1").layout
    condition = 2 * 4
    video, audio = recorded["in.video_rows"], recorded["in.audio_rows"]
    times = [recorded[f"step{i}.timestep"][recorded[f"step{i}.timestep_indices"]] for i in range(3)]
    with (
        Model.open(models["a"]) as model,
        model.prepare(layout, recorded["in.text"][0], torch.cat(times).unique().tolist()) as run,
    ):
        for i, row_times in enumerate(times):
            velocity, audio_velocity = run.velocity(video, audio, row_times)
            t = [row_times[layout.video_indices[-1]], row_times[layout.audio_indices[0]]]
            end = [torch.ones(()), torch.ones(())]
            if i < 2:
                end = [times[i + 1][layout.video_indices[-1]], times[i + 1][layout.audio_indices[0]]]
            video, audio = video.clone(), audio + (end[1] - t[1]) * audio_velocity
            video[condition:] += (end[0] - t[0]) * velocity[condition:]
            for rows, name in ((video, "video_rows"), (audio, "audio_rows")):
                assert relative_l2(rows, recorded[f"step{i}.{name}"]) < 2e-6


# ---- formats ----


@pytest.mark.parametrize("type_name", FORMATS)
def test_dequantizes_random_bytes_bit_for_bit(type_name: str) -> None:
    kind = gguf.GGMLQuantizationType[type_name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(3).integers(0, 256, (257, 8 * 256 // elements * size), dtype=np.uint8)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = gguf.dequantize(data, kind).astype(np.float32).reshape(-1)
    result = engine.dequantize(type_name, data, expected.size)
    number = ~np.isnan(expected)
    assert np.array_equal(np.isnan(result), ~number)
    assert np.array_equal(result[number].view(np.uint32), expected[number].view(np.uint32))
    assert number.mean() > 0.9


def test_formats_refuse_what_does_not_fit() -> None:
    with pytest.raises(EngineError, match="IQ4_XS"):
        engine.dequantize("IQ4_XS", np.zeros(136, np.uint8), 256)
    with pytest.raises(EngineError, match="33 bytes are not 32 values of Q8_0"):
        engine.dequantize("Q8_0", np.zeros(33, np.uint8), 32)
    with pytest.raises(EngineError, match="34 bytes are not 31 values of Q8_0"):
        engine.dequantize("Q8_0", np.zeros(34, np.uint8), 31)


WIDE = {
    "num_attention_heads": 3, "attention_head_dim": 256, "hidden_size": 256, "num_layers": 2,
    "num_refiner_layers": 1, "ffn_dim": 512, "in_channels": 24, "audio_in_channels": 32,
    "patch_size": (1, 2, 2), "text_dim": 40, "freq_dim": 64, "time_embed_hidden_dim": 48,
    "time_embed_dim": 32, "rope_freq_dim": 16, "rope_theta": 10000.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def wide() -> dict[str, Tensor]:
    return {name: value.detach() for name, value in random_model(WIDE).state_dict().items()}


def reference(state: dict[str, Tensor], config: dict, case: Case) -> tuple[Tensor, Tensor]:
    model = random_model(config)
    model.load_state_dict({name: value.float() for name, value in state.items()})
    with torch.no_grad():
        video, audio = model(**case.group("in."), return_dict=False)
    return video[0], audio[0]


def stored_values(state: dict[str, Tensor], type_name: str) -> dict[str, Tensor]:
    """What a file of `big_matrices(type_name)` holds, read by the gguf package, under diffusers' names."""
    parts = ("to_q", "to_k", "to_v", "to_out.0", "ff.net.0.proj", "ff.net.2")
    matrices = tuple(f"{part}.weight" for part in parts)
    # Rows are packed one by one, so the parts of a stacked tensor may be packed apart.
    return {
        name: unpack(pack(value, type_name), type_name, tuple(value.shape))
        if name.endswith(matrices)
        else value
        for name, value in state.items()
    }


@pytest.mark.parametrize("type_name", FORMATS)
def test_computes_every_format(type_name: str, wide: dict[str, Tensor], tmp_path: Path) -> None:
    case = load_case("a_fl2va_step1")
    path = write_gguf(tmp_path / "m.gguf", community_names(wide), WIDE, big_matrices(type_name))
    expected = reference(stored_values(wide, type_name), WIDE, case)
    for kernels in (name for name, reason in runnable(path).items() if not reason):
        for result, value in zip(forward(path, case, kernels=kernels), expected, strict=True):
            assert relative_l2(result, value) < 2e-6


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1", "Q4_K", "Q5_0"])
def test_rounded_inputs_cost_little_and_only_where_they_should(
    type_name: str, wide: dict[str, Tensor], tmp_path: Path
) -> None:
    """Measured: 3.3e-3 to 3.8e-3 of the velocity. What is not 4-bit, and sets without it, stay exact."""
    case = load_case("a_fl2va_step1")
    path = write_gguf(tmp_path / "m.gguf", community_names(wide), WIDE, big_matrices(type_name))
    reasons, rounded = runnable(path), {}
    for kernels in (name for name, reason in reasons.items() if not reason):
        exact = torch.cat([part.flatten() for part in forward(path, case, kernels=kernels)])
        with Model.open(path, kernels=kernels, round_inputs=True) as model:
            rounds = model.describe()["rounds_inputs"] and type_name.startswith("Q4")
        results = [forward(path, case, threads, kernels, round_inputs=True) for threads in (1, 3)]
        first, second = (torch.cat([part.flatten() for part in result]) for result in results)
        assert torch.equal(first, second)
        assert (1e-4 < relative_l2(first, exact) < 6e-3) if rounds else torch.equal(first, exact)
        rounded[kernels] = first
    assert not any(relative_l2(value, rounded["plain"]) > 8e-3 for value in rounded.values())


def test_rounding_does_not_hide_a_fault(wide: dict[str, Tensor], tmp_path: Path) -> None:
    case = load_case("a_fl2va_step1")
    path = write_gguf(tmp_path / "m.gguf", community_names(wide), WIDE, big_matrices("Q4_0"))
    for fault in (float("nan"), float("inf")):
        broken = Case({**case.tensors, "in.hidden_states": case["in.hidden_states"].clone()})
        broken["in.hidden_states"][0, 3, 5] = fault
        for kernels in (name for name, reason in runnable(path).items() if not reason):
            with pytest.raises(EngineError, match="not finite"):
                forward(path, broken, kernels=kernels, round_inputs=True)


def test_mixed_formats_everywhere(wide: dict[str, Tensor], tmp_path: Path) -> None:
    """Every tensor, norms and biases too, in the narrowest format its rows allow."""
    turn = iter(["F16", "BF16", "F32"] * 1000)

    def type_of(name: str, tensor: Tensor) -> str:
        width = tensor.shape[-1]
        return "Q6_K" if width % 256 == 0 else "Q8_0" if width % 32 == 0 else next(turn)

    tensors = community_names(wide)
    path = write_gguf(tmp_path / "m.gguf", tensors, WIDE, type_of)
    turn = iter(["F16", "BF16", "F32"] * 1000)
    kinds = {name: type_of(name, tensor) for name, tensor in tensors.items()}
    assert set(kinds.values()) == {"Q6_K", "Q8_0", "F16", "BF16", "F32"}
    exact = {
        name: unpack(pack(value, kinds[name]), kinds[name], tuple(value.shape))
        for name, value in tensors.items()
    }
    plain = write_gguf(tmp_path / "f.gguf", exact, WIDE)
    case = load_case("a_t2va_step1")
    for result, expected in zip(forward(path, case), forward(plain, case), strict=True):
        assert torch.equal(result, expected)


# ---- shapes ----


@pytest.mark.parametrize(
    ("video", "audio", "text"), [(12, 0, 6), (0, 16, 6), (12, 16, 0), (1, 0, 0), (300, 260, 70)]
)
def test_any_numbers_of_rows_in_any_order(
    video: int, audio: int, text: int, models: dict[str, Path], tmp_path: Path
) -> None:
    """More rows than a chunk and than a block of keys; rows of a kind far apart; empty kinds."""
    generator = torch.Generator().manual_seed(5)
    rows = video + audio + text
    places = torch.randperm(rows, generator=generator)
    times = torch.tensor([0.25, 0.5, 0.999])
    tensors = {
        "in.hidden_states": torch.randn(1, video, 96, generator=generator),
        "in.audio_hidden_states": torch.randn(1, audio, 32, generator=generator),
        "in.encoder_hidden_states": torch.randn(1, text, 40, generator=generator),
        "in.timestep": times,
        "in.timestep_indices": torch.randint(0, 3, (rows,), generator=generator),
        "in.token_tags": torch.randint(0, 3, (rows,), generator=generator),
        "in.position_ids": torch.rand(rows, 3, generator=generator, dtype=torch.float64) * 200,
        "in.video_indices": places[:video].sort().values,
        "in.audio_indices": places[video : video + audio],
        "in.text_indices": places[video + audio :].sort().values,
    }
    case = Case(tensors)
    state, config = fixture_model("a")
    result = forward(models["a"], case)
    for value, expected in zip(result, reference(state, config, case), strict=True):
        assert value.shape == expected.shape
        if value.numel():
            assert relative_l2(value, expected) < 2e-6


def test_audio_may_be_none_where_there_is_none(models: dict[str, Path]) -> None:
    case = load_case("a_t2va_step1")
    kept = torch.cat([case.layout.text_indices, case.layout.video_indices])
    layout = Layout(
        position_ids=case.layout.position_ids[kept],
        token_tags=case.layout.token_tags[kept],
        video_indices=torch.arange(6, 18),
        audio_indices=torch.arange(0),
        text_indices=torch.arange(6),
    )
    with Model.open(models["a"]) as model, model.prepare(layout, case.text, case.timesteps) as run:
        video, audio = run.velocity(case.video, None, case.row_timesteps[kept])
    assert video.shape == (12, 96) and audio.shape == (0, 32)


# ---- the same bytes, whoever computes ----


def test_bytes_do_not_depend_on_threads(
    models: dict[str, Path], wide: dict[str, Tensor], tmp_path: Path
) -> None:
    quantized = write_gguf(tmp_path / "q.gguf", community_names(wide), WIDE, big_matrices("Q6_K"))
    for path, name in ((models["a"], "a_fl2va_step1"), (quantized, "a_t2va_step1")):
        case = load_case(name)
        results = [forward(path, case, threads=threads) for threads in (1, 2, 3, 7)]
        for result in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


def test_repeated_steps_and_shared_modulation_give_the_same_bytes(models: dict[str, Path]) -> None:
    case = load_case("a_fl2va_step1")
    expected = forward(models["a"], case)
    with Model.open(models["a"]) as model:
        # The second run finds more timesteps than it needs, in another order; the third needs new ones.
        for times in ([0.5, *reversed(case.timesteps)], case.timesteps, [*case.timesteps, 0.625]):
            with model.prepare(case.layout, case.text, times) as run:
                for _ in range(2):
                    result = run.velocity(case.video, case.audio, case.row_timesteps)
                    assert all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))


def test_two_engines_do_not_notice_each_other(models: dict[str, Path]) -> None:
    cases = {"a": load_case("a_fl2va_step1"), "b": load_case("b_fl2va_step1")}
    expected = {letter: forward(models[letter], case, threads=1) for letter, case in cases.items()}
    wrong: list[str] = []

    def work(letter: str, run: Run) -> None:
        case = cases[letter]
        for _ in range(10):
            result = run.velocity(case.video, case.audio, case.row_timesteps)
            if not all(torch.equal(a, b) for a, b in zip(result, expected[letter], strict=True)):
                wrong.append(letter)

    opened = {letter: Model.open(models[letter], threads=2) for letter in "ab"}
    runs = [
        (letter, opened[letter].prepare(cases[letter].layout, cases[letter].text, cases[letter].timesteps))
        for letter in "abab"
    ]
    workers = [threading.Thread(target=work, args=pair) for pair in runs]
    for worker in workers:
        worker.start()
    for model in opened.values():
        model.close()  # while their runs compute
    for worker in workers:
        worker.join()
    for _, run in runs:
        run.close()
    assert not wrong
