"""verify agrees with a right engine and file, and names the block where a wrong one departs."""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from safetensors.torch import load_file, save_file

from pipeline import verify
from pipeline.convert import convert
from pipeline.engine import Model
from pipeline.errors import FirstlookError, ModelError
from pipeline.layouts import Dimensions, shapes
from pipeline.meter import ByteMeter
from pipeline.reference import GgufWeights, Reference

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "h3"
MODEL_B = FIXTURES / "model_b.safetensors"
WIDE = Dimensions(
    hidden=256,
    heads=2,
    head_dim=128,
    feed_forward=512,
    blocks=4,
    refiner_blocks=1,
    video_width=96,
    audio_width=32,
    text_width=96,
    time_frequencies=64,
    time_hidden=128,
    time_width=96,
)


def made(source: Path, out: Path, quant: str, **options: object) -> Path:
    convert(source, out, quant, meter=lambda label, total: ByteMeter(label, total, io.StringIO()), **options)
    return out


def random_model(dims: Dimensions, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights that keep the size of what passes through, norms around one."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes(dims).items():
        values = torch.randn(shape, generator=generator)
        is_norm = len(shape) == 1 and name.endswith("weight")
        tensors[name] = (
            1 + 0.1 * values if is_norm else values / (shape[-1] ** 0.5 if len(shape) == 2 else 10)
        )
    return tensors


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wide") / "wide.safetensors"
    save_file(random_model(WIDE), path)
    return path


def command(capsys: pytest.CaptureFixture[str], *options: object) -> tuple[int, str]:
    """The exit code and stdout of `verify`."""
    parser = argparse.ArgumentParser()
    verify.add_arguments(parser)
    code = verify.run(parser.parse_args([str(option) for option in options]))
    return code, capsys.readouterr().out


@pytest.mark.parametrize("quant", ["q4", "q6", "q8", "f16"])
def test_every_format_agrees(
    quant: str, wide: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = made(wide, tmp_path / "model.gguf", quant)
    code, out = command(capsys, "--model", model)
    lines = out.splitlines()
    assert code == 0
    assert lines[1].split() == ["name", "relative", "L2", "max", "abs", "verdict"]
    # 6 before the blocks, 6 for each of 4 blocks, norm_out and two velocities.
    table = [line.split() for line in lines[2:-1]]
    assert len(table) == 6 + 6 * 4 + 3
    assert all(row[-1] == "ok" and float(row[1]) < verify.TOLERANCE for row in table)
    assert lines[-1].startswith("All 33 intermediates agree")

    code, out = command(capsys, "--model", model, "--reference", wide)
    assert code == 0, out


@pytest.mark.parametrize(
    "options", [("--rows", "medium", "--seed", "3"), ("--kernels", "plain", "--threads", 1)]
)
def test_other_rows_and_kernels(
    options: tuple[object, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = made(MODEL_B, tmp_path / "b.gguf", "q8")
    code, out = command(capsys, "--model", model, *options)
    assert code == 0, out


def test_a_small_rotary_table_from_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file(load_file(FIXTURES / "model_a.safetensors"), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((FIXTURES / "model_a_config.json").read_text())
    model = made(tmp_path, tmp_path / "a.gguf", "q8")
    assert command(capsys, "--model", model)[0] == 0
    # Without a config the checkpoint cannot be read, with another theta it is another model.
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_theta": 100.0}))
    code, out = command(capsys, "--model", model, "--reference", tmp_path)
    assert code == 1
    assert "The rotary table departs first" in out


@pytest.mark.parametrize(
    ("swapped", "where"),
    [
        ("mlp.fc1.weight", "Block 1 departs first: block1_ff_out"),
        ("attn.out_proj.weight", "Block 1 departs first: block1_attn_out"),
        ("attn.k_norm.weight", "Block 1 departs first: block1_attn_out"),
        ("adaln_proj.linear.bias", "Block 1 departs first: block1_adaln"),
    ],
)
def test_a_swapped_tensor_departs_at_its_block(
    swapped: str, where: str, wide: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = load_file(wide)
    first, second = f"blocks.1.{swapped}", f"blocks.3.{swapped}"
    tensors[first], tensors[second] = tensors[second], tensors[first]
    save_file(tensors, tmp_path / "swapped.safetensors")
    model = made(tmp_path / "swapped.safetensors", tmp_path / "swapped.gguf", "q8")
    assert command(capsys, "--model", model)[0] == 0  # consistent with itself
    code, out = command(capsys, "--model", model, "--reference", wide)
    assert code == 1
    assert out.splitlines()[-1].startswith(where)
    assert "block0_out" in out and "block0_out            departs" not in out


class Nudged(GgufWeights):
    """One tensor a little off, as a broken kernel or reader would have it."""

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        rows = super().read_rows(name, start, stop)
        return rows * np.float32(1 + 1e-4) if name == "blocks.2.attn.out_proj.weight" else rows


def test_a_small_error_of_the_engine_is_noticed(wide: Path, tmp_path: Path) -> None:
    path = made(wide, tmp_path / "model.gguf", "q8")
    with Model.open(path, threads=1) as model:
        results = verify.compare(
            model,
            Reference(Nudged(path), verify.engine_settings(model.config)),
            verify.make_inputs(model.config),
            verify.TOLERANCE,
        )
    assert verify.conclusion(results).startswith("Block 2 departs first: block2_attn_out by 1.00e-04")


@pytest.mark.parametrize("quant", ["q4", "f16"])
def test_a_wrong_qkv_order_needs_a_reference(
    quant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original = FIXTURES / "model_b_original_layout.safetensors"
    wrong = made(original, tmp_path / "wrong.gguf", quant, qkv="stacked")
    right = made(original, tmp_path / "right.gguf", quant)
    assert command(capsys, "--model", wrong)[0] == 0
    assert command(capsys, "--model", right, "--reference", MODEL_B)[0] == 0
    code, out = command(capsys, "--model", wrong, "--reference", MODEL_B)
    assert code == 1
    assert "departs first: refined_text" in out  # the refiner is the first to attend
    assert command(capsys, "--model", wrong, "--reference", right)[0] == 1  # a GGUF judges as well


def test_tolerance_is_that_of_the_coarsest_format() -> None:
    assert verify.tolerance_for({"F32": 9, "Q4_0": 1}, reference=False) == verify.TOLERANCE
    assert verify.tolerance_for({"F32": 9, "F16": 2}, reference=True) == 3e-3
    assert verify.tolerance_for({"Q8_0": 9, "Q4_0": 2, "F16": 1}, reference=True) == 0.6


def test_models_that_cannot_be_compared(wide: Path, tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    verify.add_arguments(parser)

    def run(*options: object) -> None:
        verify.run(parser.parse_args([str(option) for option in options]))

    model = made(MODEL_B, tmp_path / "b.gguf", "q8")
    with pytest.raises(ModelError, match="different dimensions"):
        run("--model", model, "--reference", wide)
    with pytest.raises(ModelError, match="does not exist"):
        run("--model", tmp_path / "absent.gguf")
    (tmp_path / "cut.gguf").write_bytes(model.read_bytes()[:-1000])
    with pytest.raises(FirstlookError, match=r"cut\.gguf"):
        run("--model", tmp_path / "cut.gguf")


def test_a_model_folder(tmp_path: Path) -> None:
    (tmp_path / "transformer").mkdir()
    model = made(MODEL_B, tmp_path / "transformer" / "model.gguf", "q8")
    assert verify.find_transformer(tmp_path) == model
    assert verify.find_transformer(model) == model
    model.unlink()
    with pytest.raises(ModelError, match="denoiser is missing"):
        verify.find_transformer(tmp_path)


CAPPED = """
import resource, sys
from pathlib import Path
import torch
from pipeline import verify
from pipeline.engine import Model
from pipeline.reference import GgufWeights, Reference
torch.set_num_threads(1)
def run(path):
    with Model.open(path, threads=1) as model:
        reference = Reference(GgufWeights(path), verify.engine_settings(model.config))
        return verify.compare(model, reference, verify.make_inputs(model.config), verify.TOLERANCE)
run(Path(sys.argv[1]))  # everything that is loaded once, is now
status = Path("/proc/self/status").read_text()
used = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used + 100 * 2**20, -1))
print(verify.conclusion(run(Path(sys.argv[2]))))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_DATA caps memory on Linux only")
def test_memory_does_not_grow_with_the_blocks(tmp_path: Path) -> None:
    """300 MB of float32 weights are compared with 100 MB to spare; loading them whole is shown to fail."""
    small = made(MODEL_B, tmp_path / "small.gguf", "q8")
    dims = Dimensions(**{**WIDE.__dict__, "hidden": 512, "blocks": 24, "feed_forward": 1024})
    tensors = {name: tensor.to(torch.float16) for name, tensor in random_model(dims).items()}
    save_file(tensors, tmp_path / "large.safetensors")
    large = made(tmp_path / "large.safetensors", tmp_path / "large.gguf", "f16")
    assert sum(tensor.n_elements for tensor in GGUFReader(large).tensors) * 4 > 290e6

    def capped(script: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script, str(small), str(large)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    done = capped(CAPPED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("All ")
    whole = CAPPED.replace("print(", "everything = torch.ones(75 * 10**6)\nprint(")
    assert "allocate memory" in capped(whole).stderr


def test_firefly_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = command(capsys, "--model", ROOT / "presets" / "firefly", "--rows", "medium")
    assert code == 0, out
