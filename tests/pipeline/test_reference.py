"""diffusers' model fed tensor by tensor gives what it gives when it is loaded as usual."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from diffusers import MiniMaxH3Transformer3DModel
from safetensors.torch import load_file, save_file

from pipeline.checkpoints import Settings, open_checkpoint
from pipeline.convert import convert
from pipeline.errors import ModelError
from pipeline.meter import ByteMeter
from pipeline.reference import CheckpointWeights, GgufWeights, Reference

FIXTURES = Path(__file__).parents[1] / "fixtures" / "h3"
CASES = ("case_a_t2va_step1", "case_a_fl2va_step1", "case_b_t2va_step1", "case_b_fl2va_step1")


def arguments(case: str) -> dict[str, torch.Tensor]:
    stored = load_file(FIXTURES / f"{case}.safetensors")
    return {name.removeprefix("in."): tensor for name, tensor in stored.items() if name.startswith("in.")}


def run(reference: Reference, case: str) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    reference.run(arguments(case), lambda name, values: found.update({name: values.clone()}))
    return found


def folder_of(letter: str, folder: Path) -> Path:
    save_file(load_file(FIXTURES / f"model_{letter}.safetensors"), folder / "model.safetensors")
    (folder / "config.json").write_text((FIXTURES / f"model_{letter}_config.json").read_text())
    return folder


@pytest.mark.parametrize("case", CASES)
def test_golden_outputs(case: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(folder_of(case[5], tmp_path))
    found = run(Reference(CheckpointWeights(checkpoint), checkpoint.settings), case)
    golden = load_file(FIXTURES / f"{case}.safetensors")
    torch.testing.assert_close(found["video_velocity"], golden["out.video"][0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found["audio_velocity"], golden["out.audio"][0], rtol=1e-5, atol=1e-5)


def test_intermediates_have_the_names_and_shapes_of_the_engine(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(folder_of("a", tmp_path))
    found = run(Reference(CheckpointWeights(checkpoint), checkpoint.settings), "case_a_t2va_step1")
    golden = load_file(FIXTURES / "case_a_t2va_step1.safetensors")
    inputs = arguments("case_a_t2va_step1")
    rows, times = inputs["position_ids"].shape[0], inputs["timestep"].shape[0]
    blocks = [
        f"block{index}_{what}"
        for index in range(3)
        for what in ("adaln", "attn_in", "attn_out", "ff_in", "ff_out", "out")
    ]
    before = ["rope_cos", "rope_sin", "time_proj", "temb", "refined_text", "packed_input"]
    assert set(found) == {*before, *blocks, "norm_out", "video_velocity", "audio_velocity"}
    assert found["block1_adaln"].shape == (times * 3, 6 * 64)
    assert found["block2_ff_out"].shape == found["packed_input"].shape == (rows, 64)
    assert found["rope_cos"].shape == (rows, 6)
    torch.testing.assert_close(found["packed_input"], golden["mid.packed_input"].reshape(rows, 64))
    torch.testing.assert_close(
        found["block0_adaln"].reshape(-1), golden["mid.block0_adaln"].reshape(-1), rtol=1e-5, atol=1e-6
    )


def test_no_weights_stay_behind(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(folder_of("a", tmp_path))
    reference = Reference(CheckpointWeights(checkpoint), checkpoint.settings)
    run(reference, "case_a_t2va_step1")
    assert {parameter.device.type for parameter in reference._model.parameters()} == {"meta"}


@pytest.mark.parametrize("quant", ["q4", "q8", "f16"])
def test_gguf_weights_equal_a_model_loaded_whole(quant: str, tmp_path: Path) -> None:
    """The same forward as diffusers' own, with the dequantized tensors in its own state dict."""
    out = tmp_path / "b.gguf"
    source = FIXTURES / "model_b_original_layout.safetensors"
    convert(source, out, quant, meter=lambda label, total: ByteMeter(label, total, io.StringIO()))
    weights = GgufWeights(out)
    found = run(Reference(weights, Settings()), "case_b_fl2va_step1")

    stacked = {
        n: torch.from_numpy(weights.read_rows(n, 0, t.rows).copy()) for n, t in tensors_of(source).items()
    }
    state = {}
    for name in load_file(FIXTURES / "model_b.safetensors"):
        state[name] = by_hand(name, stacked)
    config = json.loads((FIXTURES / "model_b_config.json").read_text())
    model = MiniMaxH3Transformer3DModel(**config).eval()
    model.load_state_dict(state)
    with torch.no_grad():
        video, audio = model(**arguments("case_b_fl2va_step1"), return_dict=False)
    assert torch.equal(found["video_velocity"], video[0])
    assert torch.equal(found["audio_velocity"], audio[0])


def tensors_of(source: Path) -> dict:
    return {tensor.name: tensor for tensor in open_checkpoint(source).tensors}


def by_hand(name: str, stacked: dict[str, torch.Tensor]) -> torch.Tensor:
    """Spelled out, so that it does not repeat the map under test."""
    for new, old in (
        ("transformer_blocks", "blocks"), ("refiner_blocks", "blocks"), ("attn.norm_q", "attn.q_norm"),
        ("attn.norm_k", "attn.k_norm"), ("attn.to_out.0", "attn.out_proj"), ("ff.net.2", "mlp.fc2"),
        ("ff.net.0.proj", "mlp.fc1"), ("audio_proj_in", "audio_patch_proj"),
        ("context_embedder", "condition_proj"),
        ("linear_1", "proj_in"), ("linear_2", "proj_out"), ("norm_out.norm", "final_layer.norm"),
        ("norm_out.linear", "final_layer.adaln_proj.linear"), ("audio_proj_out", "final_layer.audio_out"),
    ):  # fmt: skip
        name = name.replace(new, old)
    for new, old in (("proj_in.", "video_patch_proj."), ("proj_out.", "final_layer.video_out.")):
        name = old + name.removeprefix(new) if name.startswith(new) else name
    for index, which in enumerate("qkv"):
        if f".to_{which}." in name:
            return stacked[name.replace(f"to_{which}", "qkv_proj")].chunk(3)[index]
    tensor = stacked[name]
    if "mlp.fc1" in name:
        tensor = torch.cat(tensor.chunk(2)[::-1])
    return tensor[0] if name.endswith(("norm.weight", "norm1.weight", "norm2.weight", "bias")) else tensor


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign.gguf"
    path.write_bytes(b"GGUF" + b"\1" * 200)
    with pytest.raises(ModelError, match="foreign"):
        GgufWeights(path)
