"""The command line, each command in a process of its own."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.store import JobFolder

ROOT = Path(__file__).parents[2]
PATIENCE = 600.0


@pytest.fixture
def call(tmp_path, tiny_folder):
    """Run a command with the tiny presets and outputs below tmp_path."""
    environment = os.environ | {
        "FIRSTLOOK_PRESETS": str(tiny_folder),
        "FIRSTLOOK_OUTPUTS": str(tmp_path / "outputs"),
    }

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pipeline", *words]
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    run.environment = environment
    return run


RENDER = ("render", "--preset", "tiny", "--threads", "1", "--seed", "7", "--prompt", "a dog")


def one_sentence(text: str) -> bool:
    return text.count("\n") == 1 and text.endswith(".\n") and "Traceback" not in text


def test_help_is_instant(call):
    done = call("--help")
    assert done.returncode == 0 and "render" in done.stdout
    assert call("render", "--help").returncode == 0
    modules = [sys.executable, "-X", "importtime", "-m", "pipeline", "--help"]
    imported = subprocess.run(modules, cwd=ROOT, capture_output=True, text=True, check=True).stderr
    assert "torch" not in imported and "pipeline.studio" in imported


def test_render_prints_the_paths_it_wrote(call, tmp_path):
    done = call(*RENDER, "--frames", "5", "--width", "90", "--height", "50")
    assert done.returncode == 0, done.stderr
    paths = [Path(line) for line in done.stdout.splitlines()]
    assert [path.name for path in paths] == [*(f"{i:04d}.png" for i in range(1, 6)), "clip.mp4"]
    assert all(path.is_file() and path.is_relative_to(tmp_path / "outputs") for path in paths)
    assert "90×50" in done.stderr and "denoise" in done.stderr
    assert "\r" not in done.stderr and "Traceback" not in done.stderr


def test_json_is_exactly_one_object(call, tmp_path):
    done = call(*RENDER, "--frames", "5", "--json", "--out", str(tmp_path / "mine"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    result = json.loads(done.stdout)
    assert set(result) == {"frames", "clip", "seed", "seconds", "job"}
    assert result["job"] == str(tmp_path / "mine")
    assert result["frames"] == [str(tmp_path / "mine" / "frames" / f"{i:04d}.png") for i in range(1, 6)]
    assert result["clip"] == str(tmp_path / "mine" / "clip.mp4")
    assert result["seed"] == "7"
    assert set(result["seconds"]) == {"load", "text", "denoise", "decode", "export"}
    assert all(seconds >= 0 for seconds in result["seconds"].values())


def test_a_preview_then_its_render(call, tmp_path):
    words = ("--preview", "--guidance", "2", "--frames", "5", "--json", "--out", str(tmp_path / "look"))
    preview = call(*RENDER, *words)
    assert preview.returncode == 0, preview.stderr
    shown = json.loads(preview.stdout)
    assert [Path(path).name for path in shown["frames"]] == [f"000{i}.png" for i in range(1, 5)]
    assert shown["clip"] is None
    render = call("render", "--from", str(tmp_path / "look"), "--keep", "0.3", "--json")
    assert render.returncode == 0, render.stderr
    result = json.loads(render.stdout)
    request = JobFolder(Path(result["job"])).read().request
    assert (request.prompt, request.seed, request.guidance, request.frames) == ("a dog", 7, 2.0, 5)
    assert (request.stage, request.keep, request.source) == ("render", 0.3, str(tmp_path / "look"))
    assert len(result["frames"]) == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("render",), "prompt"),
        (("render", "--prompt", "  "), "prompt"),
        (("render", "--prompt", "x", "--preset", "gone"), "gone"),
        (("render", "--prompt", "x", "--frames", "0"), "frames"),
        (("render", "--prompt", "x", "--frames", "1000000"), "frames"),
        (("render", "--prompt", "x", "--width", "7"), "width"),
        (("render", "--prompt", "x", "--height", "tall"), "height"),
        (("render", "--prompt", "x", "--seed", "18446744073709551616"), "64 bits"),
        (("render", "--prompt", "x", "--seed", "-7"), "64 bits"),
        (("render", "--prompt", "x", "--steps", "0"), "steps"),
        (("render", "--prompt", "x", "--guidance", "nan"), "uidance"),
        (("render", "--prompt", "x", "--keep", "1"), "omposition"),
        (("render", "--prompt", "x", "--preset", "minimax-h3", "--guidance", "3"), "uidance"),
        (("render", "--from", "/nowhere/at/all"), "/nowhere/at/all"),
        (("resume", "nowhere"), "nowhere"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(call, tmp_path, words, said):
    done = call(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and one_sentence(done.stderr), done.stderr
    assert not (tmp_path / "outputs").exists()


def test_unknown_flags_are_one_line_too(call):
    done = call("render", "--colour", "blue")
    assert done.returncode == 2 and "--colour" in done.stderr and done.stderr.count("\n") == 1


def test_missing_models_fail_with_a_sentence_for_each_file(call, tmp_path):
    environment_home = {"HOME": str(tmp_path)}
    call.environment.update(environment_home)
    done = call("render", "--prompt", "x", "--preset", "minimax-h3")
    assert (done.returncode, done.stdout) == (1, "")
    for part in ("minimax-h3-q6.gguf", "text_encoder", "tokenizer", "vae"):
        assert str(tmp_path / "models/minimax-h3") in done.stderr and part in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_with_something_in_it_is_not_used(call, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "holiday.txt").write_text("keep me")
    done = call(*RENDER, "--out", str(tmp_path / "mine"))
    assert done.returncode == 1 and "not empty" in done.stderr and one_sentence(done.stderr)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["holiday.txt"]


def interrupt(call, folder: Path, number: signal.Signals) -> None:
    """Start a long render, send it a signal once a step is saved, and check that it ends cleanly."""
    words = ["render", "--preset", "tiny-long", "--prompt", "x", "--seed", "7", "--threads", "1"]
    command = [sys.executable, "-m", "pipeline", *words, "--out", str(folder)]
    with subprocess.Popen(
        command, cwd=ROOT, env=call.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        deadline = time.monotonic() + PATIENCE
        while not (folder / "latents.safetensors").exists():
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.001)
        run.send_signal(number)
        output, errors = run.communicate(timeout=PATIENCE)
    assert (run.returncode, output) == (130, "")
    assert "Traceback" not in errors and f"resume {folder}" in errors
    record = JobFolder(folder).read()
    assert record.state == "cancelled" and 1 <= record.step < 200


def test_a_terminate_signal_cancels_cleanly(call, tmp_path):
    interrupt(call, tmp_path / "long", signal.SIGTERM)


def test_ctrl_c_cancels_cleanly_and_resume_goes_on(call, tmp_path):
    folder = tmp_path / "long"
    interrupt(call, folder, signal.SIGINT)
    done = call("resume", str(folder), "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["frames"]) == 22
    assert call("resume", str(folder)).returncode == 1


def test_a_terminal_gets_a_bar_that_redraws(call, tmp_path):
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "pipeline", *RENDER, "--frames", "5", "--out", str(tmp_path / "tty")]
    with subprocess.Popen(
        command, cwd=ROOT, env=call.environment, stdout=subprocess.PIPE, stderr=follower
    ) as run:
        os.close(follower)
        shown = b""
        try:
            while chunk := os.read(leader, 4096):
                shown += chunk
        except OSError:
            pass  # Linux reports the end of a terminal this way.
        assert len(run.stdout.read().splitlines()) == 6
    os.close(leader)
    assert run.returncode == 0
    assert shown.count(b"\r") > 1 and b"%" in shown


def test_presets_are_listed(call):
    done = call("presets")
    assert done.returncode == 0
    assert "firefly" in done.stdout and "tiny-first" in done.stdout and "96×64" in done.stdout


def test_a_broken_preset_file_is_told_beside_the_list(call, tmp_path):
    (tmp_path / "broken.toml").write_text("title = ")
    done = call("presets", "--presets", str(tmp_path))
    assert done.returncode == 1 and "firefly" in done.stdout
    assert "broken.toml" in done.stderr


def test_doctor_describes_the_machine(call):
    done = call("doctor")
    assert "Traceback" not in done.stderr
    for word in ("processor", "memory", "engine", "kernels", "tiny: ready", "minimax-h3: not ready"):
        assert word in done.stdout
