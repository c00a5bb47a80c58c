"""The C sources under strict warnings, sanitizers, and another processor.

A tool that is missing is a reason to skip at home and a failure where CI is set.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.pipeline.h3_damage import DAMAGED
from tests.pipeline.h3_files import (
    Case,
    as_stored,
    community_names,
    fixture_gguf,
    fixture_model,
    forward,
    load_case,
    relative_l2,
    write_gguf,
)

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "csrc" / "engine_test.c"
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]
SANITIZERS = {
    "addresses": ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "threads": ["-O1", "-g", "-fsanitize=thread"],
}
ARM_COMPILER, ARM_MACHINES = "aarch64-linux-gnu-gcc", ("qemu-aarch64", "qemu-aarch64-static")


def tool(*names: str) -> str:
    """The first of these programs that is installed."""
    found = next((name for name in names if shutil.which(name)), None)
    if found is None:
        reason = f"{' or '.join(names)} is not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}, and CI must not skip this")
        pytest.skip(reason)
    return found


def run(*command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if check:
        assert result.returncode == 0, f"{shlex.join(map(str, command))}\n{result.stdout}\n{result.stderr}"
    return result


def compile_program(compiler: str, flags: list[str], target: Path) -> Path:
    run(compiler, *STRICT, *flags, "-o", target, PROGRAM, "-lm", "-lpthread")
    return target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("csrc")


@pytest.fixture(scope="module", params=sorted(SANITIZERS))
def sanitized(request: pytest.FixtureRequest, folder: Path) -> Path:
    return compile_program(
        tool("gcc", "clang"), SANITIZERS[request.param], folder / f"checked_{request.param}"
    )


@pytest.fixture(scope="module")
def on_arm(folder: Path) -> list[str | Path]:
    machine = tool(*ARM_MACHINES)
    return [machine, compile_program(tool(ARM_COMPILER), ["-O2", "-static"], folder / "on_arm")]


def write_case(path: Path, case: Case) -> Path:
    """The arguments of a pass as engine_test.c reads them."""
    layout = case.layout
    sizes = [layout.rows, len(case.video), len(case.audio), len(case.text), len(case.timesteps)]
    parts = [
        torch.tensor(sizes),
        layout.position_ids,
        layout.token_tags,
        layout.video_indices,
        layout.audio_indices,
        layout.text_indices,
        case.text,
        case.video,
        case.audio,
        case["in.timestep"],
        case.row_timesteps,
    ]
    path.write_bytes(b"".join(part.contiguous().numpy().tobytes() for part in parts))
    return path


def forward_in_c(
    program: list[str | Path], folder: Path, model: Path, case: Case, threads: int, kernels: str
) -> torch.Tensor:
    """Both velocities of one pass, in one line of numbers."""
    result = folder / "result"
    run(*program, "forward", model, write_case(folder / "case", case), result, str(threads), kernels)
    return torch.from_numpy(np.fromfile(result, np.float32))


def golden(case: Case) -> torch.Tensor:
    return torch.cat([case["out.video"].flatten(), case["out.audio"].flatten()])


# ---- warnings ----


@pytest.mark.parametrize("compiler", ["gcc", "clang", ARM_COMPILER])
def test_compiles_without_a_warning(compiler: str, folder: Path) -> None:
    # -O2: some of gcc's warnings come from what the optimizer learns.
    run(tool(compiler), "-O2", *STRICT, "-c", "-fPIC", "-o", folder / "out.o", ROOT / "csrc" / "h3.c")
    for source in sorted((ROOT / "tests" / "csrc").glob("*.c")):
        run(compiler, "-fsyntax-only", *STRICT, source)


def test_builds_by_hand_and_exports_only_its_header(folder: Path) -> None:
    library = folder / "libh3.so"
    run(*f"{tool('cc')} -O3 -std=c11 -shared -fPIC -o {library} {ROOT}/csrc/h3.c -lm -lpthread".split())
    if nm := shutil.which("nm"):
        symbols = run(nm, "-D", "--defined-only", library).stdout.split()[2::3]
        header = (ROOT / "csrc" / "h3.h").read_text()
        assert len(symbols) >= 15
        assert all(f" *{name}(" in header or f" {name}(" in header for name in symbols), symbols


# ---- sanitizers ----


def test_units_under_sanitizers(sanitized: Path) -> None:
    run(sanitized, "units")


def test_damaged_files_under_sanitizers(sanitized: Path, tmp_path: Path) -> None:
    paths = [tmp_path / f"{index}.gguf" for index in range(len(DAMAGED))]
    for path, damaged in zip(paths, DAMAGED, strict=True):
        damaged.make(path)
    whole = fixture_gguf(tmp_path, "a").read_bytes()
    for length in range(0, 4000, 61):
        paths.append(tmp_path / f"cut{length}.gguf")
        paths[-1].write_bytes(whole[:length])
    lines = run(sanitized, "open", *paths).stdout.splitlines()
    assert len(lines) == len(paths)
    assert all(line.startswith(str(path)) for line, path in zip(lines, paths, strict=True))


@pytest.mark.parametrize("name", ["a_fl2va_step1", "b_t2va_step1"])
def test_forward_under_sanitizers(name: str, sanitized: Path, tmp_path: Path) -> None:
    case = load_case(name)
    model = fixture_gguf(tmp_path, name[0])
    for threads, kernels in ((1, "plain"), (3, "")):
        result = forward_in_c([sanitized], tmp_path, model, case, threads, kernels)
        assert relative_l2(result, golden(case)) < 2e-6


def test_every_format_under_sanitizers(
    sanitized: Path, every_format: Callable[[Path], Path], tmp_path: Path
) -> None:
    case, model = load_case("b_t2va_step0"), every_format(tmp_path)
    expected = torch.cat([part.flatten() for part in forward(model, case)])
    assert relative_l2(forward_in_c([sanitized], tmp_path, model, case, 2, ""), expected) < 2e-6


# ---- Arm, on an emulated processor ----


@pytest.fixture(scope="module")
def every_format() -> Callable[[Path], Path]:
    """Fixture B with matrices in every format their rows allow (out_proj is 256 wide)."""

    def write(folder: Path) -> Path:
        state, config = fixture_model("b")
        kinds = {"blocks.0.attn.out_proj.weight": "Q6_K", "blocks.1.attn.out_proj.weight": "Q4_0",
                 "blocks.0.mlp.fc2.weight": "Q8_0", "blocks.1.mlp.fc2.weight": "F16"}  # fmt: skip
        return write_gguf(
            folder / "every.gguf",
            community_names(state),
            config,
            lambda name, tensor: kinds.get(name, as_stored(name, tensor)),
        )

    return write


def test_units_on_arm(on_arm: list[str | Path]) -> None:
    run(*on_arm, "units")


@pytest.mark.parametrize("name", ["a_fl2va_step1", "b_t2va_step1"])
def test_golden_outputs_on_arm(name: str, on_arm: list[str | Path], tmp_path: Path) -> None:
    case = load_case(name)
    model = fixture_gguf(tmp_path, name[0])
    results = [forward_in_c(on_arm, tmp_path, model, case, threads, "neon") for threads in (1, 3)]
    assert relative_l2(results[0], golden(case)) < 2e-6
    assert torch.equal(*results)


def test_every_format_on_arm(
    on_arm: list[str | Path], every_format: Callable[[Path], Path], tmp_path: Path
) -> None:
    case, model = load_case("b_t2va_step0"), every_format(tmp_path)
    expected = torch.cat([part.flatten() for part in forward(model, case)])
    assert relative_l2(forward_in_c(on_arm, tmp_path, model, case, 2, "neon"), expected) < 2e-6
