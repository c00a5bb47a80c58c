"""Building the library on first use."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import build
from pipeline.errors import EngineError

FAKE_COMPILER = """#!/bin/sh
# Says its version, counts its calls, and writes what it was asked to write.
if [ "$1" = --version ]; then echo "fake $VERSION"; exit 0; fi
echo call >> "$CALLS"
sleep 0.2
while [ "$1" != -o ]; do shift; done
echo built > "$2"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of its own with a compiler that only counts."""
    root = tmp_path / "project"
    (root / "csrc").mkdir(parents=True)
    (root / "csrc" / "h3.c").write_text("int x;\n")
    (root / "csrc" / "h3.h").write_text("\n")
    compiler = tmp_path / "fakecc"
    compiler.write_text(FAKE_COMPILER)
    compiler.chmod(0o755)
    monkeypatch.setattr(build, "ROOT", root)
    monkeypatch.setattr(build, "SOURCES", root / "csrc")
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("VERSION", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return root


def calls(project: Path) -> int:
    record = project.parent / "calls"
    return len(record.read_text().splitlines()) if record.exists() else 0


def test_builds_once_and_again_when_something_changed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build.build_library()
    assert first.parent == project / "build" and first.read_text() == "built\n"
    assert build.build_library() == first and calls(project) == 1
    build.build_library(force=True)
    assert calls(project) == 2
    (project / "csrc" / "h3.h").write_text("#define NEW 1\n")
    second = build.build_library()
    monkeypatch.setenv("VERSION", "2")
    third = build.build_library()
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
    fourth = build.build_library()
    assert len({first, second, third, fourth}) == 4 and calls(project) == 5


def test_processes_that_start_together_compile_once(project: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from pipeline import build; "
        "build.ROOT = Path(sys.argv[1]); build.SOURCES = build.ROOT / 'csrc'; print(build.build_library())"
    )
    here = Path(build.__file__).resolve().parent.parent
    command = [sys.executable, "-c", program, str(project)]
    started = [subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    printed = {process.communicate()[0] for process in started}
    assert len(printed) == 1 and Path(printed.pop().strip()).exists()
    assert calls(project) == 1
    assert {path.suffix for path in (project / "build").iterdir()} == {".lock", *_library_suffix()}


def _library_suffix() -> set[str]:
    return {".dylib" if sys.platform == "darwin" else ".so"}


def test_uses_the_cache_folder_where_the_project_cannot_be_written(project: Path, tmp_path: Path) -> None:
    (project / "build").write_text("a file in the way\n")
    assert build.build_library().parent == tmp_path / "cache" / "firstlook"


def test_says_what_to_do_without_a_compiler(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    with pytest.raises(EngineError, match="CC names no-such-compiler, which was not found"):
        build.build_library()
    monkeypatch.delenv("CC")
    with pytest.raises(EngineError, match="install gcc or clang, or set CC"):
        build.build_library()
    (tmp_path / "clang").symlink_to(tmp_path / "fakecc")
    assert build.find_compiler() == ("clang",)


def test_a_failed_compilation_names_its_first_error_and_leaves_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC")
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        pytest.skip("no compiler is installed")
    (project / "csrc" / "h3.c").write_text("#error This processor is from the moon.\n")
    with pytest.raises(EngineError, match=r"could not be compiled with .*from the moon"):
        build.build_library()
    assert [path.name for path in (project / "build").iterdir()] == ["build.lock"]


@pytest.mark.parametrize(("system", "machine"), [("win32", "AMD64"), ("linux", "riscv64"), ("linux", "i686")])
def test_names_the_systems_it_runs_on(system: str, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(EngineError, match=f"Linux and macOS, on x86-64 and arm64; this is .* on {machine}"):
        build.build_library()


def test_builds_as_a_command() -> None:
    root = Path(build.__file__).resolve().parent.parent
    environment = {**os.environ, "H3_KERNELS": "plain"}
    result = subprocess.run(
        [sys.executable, "-m", "pipeline.engine"],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "plain kernels" in result.stdout and result.stdout.count("\n") == 1
