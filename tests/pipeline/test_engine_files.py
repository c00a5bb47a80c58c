"""The engine refuses what it cannot compute correctly, in one sentence with the file's name."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from pipeline.engine import Model
from pipeline.errors import EngineError
from tests.pipeline.h3_damage import DAMAGED, Damaged
from tests.pipeline.h3_files import (
    community_names,
    fixture_gguf,
    fixture_model,
    load_case,
    relative_l2,
    write_gguf,
)


def refusal(path: Path) -> str:
    with pytest.raises(EngineError) as caught:
        Model.open(path, threads=1)
    return str(caught.value)


@pytest.mark.parametrize("damaged", DAMAGED, ids=lambda damaged: damaged.name)
def test_refuses_with_file_and_reason(damaged: Damaged, tmp_path: Path) -> None:
    path = tmp_path / "some file.gguf"
    damaged.make(path)
    sentence = refusal(path)
    for word in (str(path), *damaged.words):
        assert word in sentence, sentence
    assert sentence.endswith(".") and "\n" not in sentence


def test_refuses_what_is_not_a_file(tmp_path: Path) -> None:
    assert "cannot be opened: No such file" in refusal(tmp_path / "none.gguf")
    assert "not a file" in refusal(tmp_path)


def test_refuses_every_truncation(tmp_path: Path) -> None:
    whole = fixture_gguf(tmp_path, "a").read_bytes()
    path = tmp_path / "cut.gguf"
    generator = random.Random(1)
    lengths = {*range(64), *(generator.randrange(len(whole) - 64) for _ in range(300))}
    for length in sorted(lengths):
        path.write_bytes(whole[:length])
        assert str(path) in refusal(path)


def test_damage_anywhere_in_the_header_is_refused_or_harmless(tmp_path: Path) -> None:
    whole = fixture_gguf(tmp_path, "a").read_bytes()
    header = whole.index(b"final_layer.video_out") if b"final_layer.video_out" in whole else 4000
    path = tmp_path / "flipped.gguf"
    generator = random.Random(2)
    refused = 0
    for _ in range(400):
        content = bytearray(whole)
        content[generator.randrange(header)] ^= 1 << generator.randrange(8)
        path.write_bytes(content)
        try:
            Model.open(path, threads=1).close()
        except EngineError as error:
            refused += 1
            assert str(path) in str(error)
    assert refused > 300


def test_reads_version_2_other_alignment_prefix_and_foreign_metadata(tmp_path: Path) -> None:
    state, config = fixture_model("a")
    case = load_case("a_t2va_step0")

    def describe(writer) -> None:
        writer.add_custom_alignment(64)
        writer.add_array("tokenizer.ggml.tokens", ["a", "bc", "字"])
        writer.add_bool("some.flag", True)

    path = write_gguf(
        tmp_path / "m.gguf",
        community_names(state),
        config,
        prefix="model.diffusion_model.",
        metadata=describe,
    )
    content = bytearray(path.read_bytes())
    content[4] = 2
    path.write_bytes(content)
    with Model.open(path) as model, model.prepare(case.layout, case.text, case.timesteps) as run:
        video, _ = run.velocity(case.video, case.audio, case.row_timesteps)
    assert relative_l2(video, case["out.video"]) < 2e-5


def test_config_comes_from_tensors_then_metadata_then_the_released_model(tmp_path: Path) -> None:
    path = fixture_gguf(tmp_path, "a")
    with Model.open(path) as model:
        config = model.config
    assert (config.hidden, config.heads, config.head_width, config.feed_forward) == (64, 4, 16, 80)
    assert (config.blocks, config.refiner_blocks) == (3, 2)
    assert (config.text_dim, config.video_width, config.audio_channels) == (40, 96, 32)
    assert (config.time_frequencies, config.time_hidden, config.time_width) == (32, 48, 16)
    assert config.rope_frequencies == 2
    assert (config.patch_size, config.latent_channels) == ((1, 2, 2), 24)
    adaln = sum(4 * value.numel() for name, value in fixture_model("a")[0].items() if "adaln" in name or
                name.startswith("norm_out.linear"))  # fmt: skip
    assert config.adaln_bytes == adaln
    assert config.weight_bytes == sum(4 * value.numel() for value in fixture_model("a")[0].values())

    def describe(writer) -> None:
        writer.add_array("minimax_h3.patch_size", [1, 1, 1])
        writer.add_float32("minimax_h3.rope.freq_base", 500.0)
        writer.add_float32("minimax_h3.attention.qk_norm_epsilon", 1e-6)

    state, _ = fixture_model("b")
    path = write_gguf(tmp_path / "b.gguf", community_names(state), metadata=describe)
    with Model.open(path) as model:
        config = model.config
    assert (config.patch_size, config.latent_channels, config.rope_frequencies) == ((1, 1, 1), 96, 16)
    assert config.rope_theta == 500.0
    assert config.qk_norm_epsilon == pytest.approx(1e-6) and config.norm_epsilon == pytest.approx(1e-5)


def test_own_rotary_frequencies_win(tmp_path: Path) -> None:
    state, config = fixture_model("a")
    case = load_case("a_t2va_step0")
    tensors = community_names(state)
    outputs = []
    for theta, frequencies in ((10000.0, None), (77.0, torch.tensor([1.0, 0.01]))):
        extra = {} if frequencies is None else {"rope.inv_freq": frequencies}
        path = write_gguf(tmp_path / f"{theta}.gguf", {**tensors, **extra}, {**config, "rope_theta": theta})
        with Model.open(path) as model, model.prepare(case.layout, case.text, case.timesteps) as run:
            outputs.append(run.velocity(case.video, case.audio, case.row_timesteps)[0])
    assert relative_l2(outputs[1], outputs[0]) < 1e-6
