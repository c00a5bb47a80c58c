"""Finding a model's files, telling what is missing, and refusing what is damaged or foreign."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline import models
from pipeline.canvas import ModelGeometry
from pipeline.errors import ModelError
from tests.pipeline.tiny import make_vae, write_gguf, write_model


@dataclass(frozen=True)
class Entry:
    role: str
    path: str
    note: str


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_model(tmp_path / "model")


def test_a_complete_model_is_found(folder):
    files = models.find(folder)
    assert files.missing == ()
    assert files.transformer == folder / "transformer" / "tiny.gguf"
    assert (files.shift, files.audio_shift, files.text_hidden_layer) == (12.0, 3.0, 2)
    assert files.audio_vae is None
    assert set(files.sizes) == {"transformer", "text_encoder", "tokenizer", "vae"}
    assert files.sizes["transformer"] == files.transformer.stat().st_size
    assert files.geometry == ModelGeometry(latent_channels=4, has_audio=False)


def test_defaults_without_index_and_schedulers_are_the_releases(folder):
    (folder / "model_index.json").unlink()
    files = models.find(folder)
    assert files.text_hidden_layer == 50
    assert files.geometry.has_audio


def test_shifts_come_from_the_schedulers(folder):
    for name, shift in (("scheduler", 6), ("audio_scheduler", 2.5)):
        (folder / name).mkdir()
        (folder / name / "scheduler_config.json").write_text(json.dumps({"shift": shift}))
    files = models.find(folder)
    assert (files.shift, files.audio_shift) == (6.0, 2.5)
    (folder / "scheduler" / "scheduler_config.json").write_text('{"shift": 0}')
    with pytest.raises(ModelError, match="shift"):
        models.find(folder)


def test_an_absent_folder_lists_every_part(tmp_path):
    files = models.find(tmp_path / "nowhere")
    assert [entry.role for entry in files.missing] == ["denoiser", "text encoder", "tokenizer", "video VAE"]
    assert files.missing[3].path == tmp_path / "nowhere" / "vae"
    assert all(entry.note.endswith(".") for entry in files.missing)
    assert files.sizes == {}
    with pytest.raises(ModelError, match="denoiser"):
        files.require("transformer")
    with pytest.raises(ModelError, match="video VAE"):
        _ = files.geometry


def test_a_presets_own_paths_and_notes_are_used(folder):
    write_gguf(folder / "transformer" / "other.gguf", patch=(1, 1, 1))
    expected = (
        Entry("transformer", "transformer/other.gguf", "From somewhere."),
        Entry("video VAE", "video", "Copy the released vae folder."),
        Entry("upscaler", "upscaler.pth", "Optional extra."),
    )
    (folder / "vae").rename(folder / "video")
    files = models.find(folder, expected)
    assert files.transformer == folder / "transformer" / "other.gguf"
    assert files.vae == folder / "video"
    assert files.missing == (models.Missing("upscaler", folder / "upscaler.pth", "Optional extra."),)
    assert files.geometry.multiple == 16
    (folder / "video" / "config.json").unlink()
    missing = models.find(folder, expected).missing
    assert missing[0] == models.Missing("video VAE", folder / "video", "Copy the released vae folder.")


def test_another_name_than_the_presets_is_accepted(folder):
    files = models.find(folder, (Entry("transformer", "transformer/minimax-h3-q6.gguf", ""),))
    assert files.transformer == folder / "transformer" / "tiny.gguf"


def test_two_denoisers_are_not_guessed_between(folder):
    write_gguf(folder / "transformer" / "second.gguf")
    with pytest.raises(ModelError, match=r"second\.gguf, tiny\.gguf"):
        models.find(folder)


def test_safetensors_denoisers_are_told_how_to_convert(folder):
    (folder / "transformer" / "tiny.gguf").unlink()
    save_file({"x": np.zeros(1, np.float32)}, folder / "transformer" / "a.safetensors")
    (missing,) = models.find(folder).missing
    assert f"convert --input {folder / 'transformer'} --out {missing.path}" in missing.note


def test_detection_is_by_tensors_with_or_without_prefix(folder):
    path = folder / "transformer" / "tiny.gguf"
    for prefix in ("model.diffusion_model.", "diffusion_model."):
        write_gguf(path, prefix=prefix)
        assert models.find(folder).geometry.latent_channels == 4
    write_gguf(path, drop=("condition_proj.weight",))
    with pytest.raises(ModelError, match=r"tiny\.gguf lacks tensor condition_proj\.weight"):
        models.find(folder)


@pytest.mark.parametrize("cut", [3, 100, -64])
def test_a_denoiser_cut_short_is_refused(folder, cut):
    path = folder / "transformer" / "tiny.gguf"
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    with pytest.raises(ModelError, match=r"tiny\.gguf"):
        models.find(folder)


def test_a_renamed_text_file_is_not_a_denoiser(folder):
    (folder / "transformer" / "tiny.gguf").write_text("<html>not found</html>" * 9)
    with pytest.raises(ModelError, match="not a GGUF file"):
        models.find(folder)


@pytest.mark.parametrize("part", ["vae", "text_encoder"])
def test_weights_cut_short_are_refused(folder, part):
    (path,) = (folder / part).glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ModelError, match=path.name):
        models.find(folder)


def test_another_vae_layout_is_refused(folder):
    (path,) = (folder / "vae").glob("*.safetensors")
    save_file({"decoder.blocks.0.attn.to_qkv.weight": np.zeros(1, np.float32)}, path)
    with pytest.raises(ModelError, match="video VAE"):
        models.find(folder)


def test_a_missing_shard_is_named(folder):
    index = {"weight_map": {"x": "model.safetensors", "y": "model-00002-of-00002.safetensors"}}
    (folder / "text_encoder" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="model-00002-of-00002"):
        models.find(folder)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_broken_configurations_are_named(folder, text):
    (folder / "vae" / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"vae.config\.json"):
        models.find(folder)


def test_a_vae_of_another_model_is_refused(folder):
    vae = make_vae(latent_channels=6, latents_mean=(0.0,) * 6, latents_std=(1.0,) * 6)
    vae.save_pretrained(folder / "vae")
    with pytest.raises(ModelError, match="do not belong together"):
        _ = models.find(folder).geometry


def test_a_text_encoder_of_another_model_is_refused(folder):
    write_gguf(folder / "transformer" / "tiny.gguf", text=48)
    with pytest.raises(ModelError, match="text rows of 48"):
        _ = models.find(folder).geometry


def test_geometry_reads_the_vaes_own_numbers(folder):
    make_vae(clip_length=9, token_drop=2, temporal_downsample_factors=(1, 2, 1, 1)).save_pretrained(
        folder / "vae"
    )
    geometry = models.find(folder).geometry
    assert (geometry.clip_length, geometry.token_drop, geometry.temporal_ratio) == (9, 2, 2)


def test_hashes_name_every_file_and_follow_changes(folder):
    before = models.find(folder).hashes()
    assert "transformer/tiny.gguf" in before
    assert "vae/config.json" in before
    assert all(value.startswith("sha256:") and len(value) == 71 for value in before.values())
    config = folder / "vae" / "config.json"
    config.write_text(config.read_text() + "\n")
    after = models.find(folder).hashes()
    assert {name for name in after if after[name] != before[name]} == {"vae/config.json"}


def test_large_files_are_sampled_and_say_so(folder, monkeypatch):
    path = folder / "transformer" / "tiny.gguf"
    monkeypatch.setattr(models, "WHOLE_HASH", 100)
    monkeypatch.setattr(models, "SAMPLE", 10)
    models._digest.cache_clear()
    first = models.find(folder).hashes()["transformer/tiny.gguf"]
    assert first.startswith("sampled-sha256:")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    models._digest.cache_clear()
    assert models.find(folder).hashes()["transformer/tiny.gguf"] != first
    models._digest.cache_clear()
