"""Presets are read from TOML, the person's own beside ours; a broken file never hides the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import FirstlookError, RequestError, find_preset, load_presets, user_presets_folder
from pipeline.presets import BUNDLED, read_preset

GOOD = """
title = "Mine"
model = "models/mine"
fps = 12
[render]
width = 64
height = 64
frames = 22
steps = 4
guidance = 1.5
keep = 0.5
[preview]
width = 64
height = 64
frames = 22
steps = 2
"""


def write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_bundled_presets_are_sound(tmp_path):
    presets = load_presets(tmp_path)
    assert presets.problems == ()
    assert next(iter(presets)) == "firefly"
    assert {"firefly", "quick", "minimax-h3"} <= set(presets)


def test_firefly_is_the_model_that_comes_along(tmp_path):
    firefly = load_presets(tmp_path)["firefly"]
    assert firefly.model == BUNDLED / "firefly"
    assert firefly.guidance_offered and firefly.preview_first
    assert (firefly.preview.width, firefly.preview.height) == (192, 112)
    assert firefly.examples[0] == "a dog runs to the right in the rain"


def test_the_released_model_has_no_guidance_and_says_where_its_files_go(tmp_path):
    h3 = load_presets(tmp_path)["minimax-h3"]
    assert (h3.render.width, h3.render.height, h3.render.frames, h3.render.steps) == (640, 384, 24, 25)
    assert (h3.preview.width, h3.preview.height, h3.preview.frames, h3.preview.steps) == (384, 224, 22, 12)
    assert (h3.show_width, h3.show_height, h3.show_frames) == (192, 112, 4)
    assert not h3.guidance_offered and h3.render.guidance == h3.preview.guidance == 1.0
    assert h3.model.is_absolute() and "~" not in str(h3.model)
    assert {file.role for file in h3.files} == {"transformer", "text encoder", "tokenizer", "video VAE"}
    assert all(file.note for file in h3.files)


def test_a_persons_own_file_appears_beside_them(tmp_path):
    write(tmp_path, GOOD)
    presets = load_presets(tmp_path)
    mine = presets["mine"]
    assert presets.problems == ()
    assert mine.title == mine.title_zh == "Mine"
    assert mine.model == tmp_path / "models/mine"
    assert mine.preview.guidance == 1.5
    assert (mine.examples, mine.files, mine.preview_first, mine.guidance_offered) == ((), (), False, True)


def test_the_folder_may_be_named_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("FIRSTLOOK_PRESETS", str(tmp_path))
    assert user_presets_folder() == tmp_path
    write(tmp_path, GOOD)
    assert "mine" in load_presets()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("fps = 12", "fps = 0"), "fps"),
        (("fps = 12", "fps = true"), "fps"),
        (("fps = 12", ""), "fps"),
        (("title =", "titel ="), "title"),
        (("width = 64", "width = 8"), "render.width"),
        (("width = 64", "width = '64'"), "render.width"),
        (("keep = 0.5", "keep = 2"), "render.keep"),
        (("steps = 2", "steps = 2\nguidence = 3"), "preview.guidence"),
        (("steps = 2", ""), "preview.steps"),
        (("fps = 12", "fps = 12\nguidance_offered = false"), "guidance"),
        (("fps = 12", "fps = 12\nexamples = 'a dog'"), "examples"),
        (("steps = 2", "steps = 2\n[[files]]\nrole = 'vae'"), "files[0].path"),
        (("[render]", "[render"), "mine.toml"),
    ],
)
def test_a_broken_file_is_told_in_one_sentence_and_hides_nothing(tmp_path, change, said):
    text = GOOD.replace(*change, 1)
    assert text != GOOD
    path = write(tmp_path, text)
    presets = load_presets(tmp_path)
    assert "firefly" in presets and "mine" not in presets
    (problem,) = presets.problems
    assert said in problem and str(path) in problem


def test_binary_rubbish_is_a_broken_file_too(tmp_path):
    (tmp_path / "rubbish.toml").write_bytes(b"\xff\xfe\x00")
    assert len(load_presets(tmp_path).problems) == 1


def test_a_bundled_preset_cannot_be_replaced_unnoticed(tmp_path):
    write(tmp_path, GOOD, "firefly.toml")
    presets = load_presets(tmp_path)
    assert presets["firefly"].title == "Firefly"
    assert "rename" in presets.problems[0]


def test_names_that_could_not_be_typed_are_refused(tmp_path):
    with pytest.raises(FirstlookError, match="lower-case"):
        read_preset(write(tmp_path, GOOD, "My Preset.toml"))


def test_an_unknown_preset_lists_those_there_are(tmp_path):
    with pytest.raises(RequestError, match="quick") as caught:
        find_preset(load_presets(tmp_path), "slow")
    assert caught.value.field == "preset"
