"""Conditioning against transformers' own hidden states, on a tiny random text model."""

from __future__ import annotations

import json
import socket

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration, Qwen3VLTextModel

from pipeline import models
from pipeline.errors import ModelError, RequestError
from pipeline.text import TextEncoder
from tests.pipeline.tiny import LAYERS, TEXT_CONFIG, TEXT_WIDTH, make_text_model, make_tokenizer, write_model

PROMPT = "a red fox"


@pytest.fixture
def folder(tmp_path):
    return write_model(tmp_path / "model")


def set_layer(folder, layer: int) -> None:
    (folder / "model_index.json").write_text(json.dumps({"_firstlook": {"text_hidden_layer": layer}}))


def hidden_states(model: Qwen3VLTextModel, prompt: str) -> tuple[torch.Tensor, ...]:
    ids = torch.tensor([make_tokenizer()(prompt, add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states


@pytest.mark.parametrize("layer", [1, 2])
def test_rows_are_the_layers_output_before_any_norm(folder, layer):
    set_layer(folder, layer)
    conditioning = TextEncoder.open(models.find(folder)).encode(PROMPT)
    assert conditioning.rows.shape == (len(PROMPT), TEXT_WIDTH)
    assert conditioning.rows.dtype == torch.float32
    assert conditioning.tags.tolist() == [1] * len(PROMPT)
    torch.testing.assert_close(conditioning.rows, hidden_states(make_text_model(), PROMPT)[layer][0])


def test_a_model_cut_to_the_layer_gives_the_same_rows(folder):
    set_layer(folder, 2)
    whole = TextEncoder.open(models.find(folder)).encode(PROMPT)
    model = make_text_model()
    model.layers, model.config.num_hidden_layers = model.layers[:2], 2
    model.save_pretrained(folder / "text_encoder")
    assert torch.equal(TextEncoder.open(models.find(folder)).encode(PROMPT).rows, whole.rows)


def test_the_last_layer_is_not_normalised(folder):
    set_layer(folder, LAYERS)
    model = make_text_model()
    with torch.no_grad():
        model.norm.weight.fill_(7.0)
    model.save_pretrained(folder / "text_encoder")
    rows = TextEncoder.open(models.find(folder)).encode(PROMPT).rows
    variance = rows.pow(2).mean(-1, keepdim=True)
    normalised = rows * torch.rsqrt(variance + model.config.rms_norm_eps) * 7.0
    torch.testing.assert_close(normalised, hidden_states(model, PROMPT)[LAYERS][0])


def test_the_language_tower_of_a_full_model_is_found(folder):
    torch.manual_seed(8)
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "num_heads": 2,
        "intermediate_size": 16,
        "out_hidden_size": TEXT_WIDTH,
        "patch_size": 2,
        "deepstack_visual_indexes": [0],
    }
    full = Qwen3VLForConditionalGeneration(
        Qwen3VLConfig(text_config=TEXT_CONFIG, vision_config=vision)
    ).eval()
    full.save_pretrained(folder / "text_encoder")
    rows = TextEncoder.open(models.find(folder)).encode(PROMPT).rows
    torch.testing.assert_close(rows, hidden_states(full.model.language_model, PROMPT)[2][0])


def test_an_empty_prompt_is_a_space(folder):
    encoder = TextEncoder.open(models.find(folder))
    assert encoder.tokens("") == encoder.tokens(" ")
    empty = encoder.encode("")
    assert empty.rows.shape == (1, TEXT_WIDTH)
    assert torch.equal(empty.rows, encoder.encode(" ").rows)


def test_prompts_are_read_verbatim(folder):
    encoder = TextEncoder.open(models.find(folder))
    assert len(encoder.tokens("  a \n")) == 5
    assert len(encoder.tokens("狐")) == 3


def test_half_precision_files_of_small_models_compute_in_float32(folder):
    make_text_model().half().save_pretrained(folder / "text_encoder")
    rows = TextEncoder.open(models.find(folder)).encode(PROMPT).rows
    model = make_text_model().half().float()
    torch.testing.assert_close(rows, hidden_states(model, PROMPT)[2][0])


def test_a_prompt_longer_than_the_model_reads_is_refused(folder):
    with pytest.raises(RequestError, match="65 tokens") as caught:
        TextEncoder.open(models.find(folder)).encode("x" * 65)
    assert caught.value.field == "prompt"


def test_too_few_layers_are_refused(folder):
    set_layer(folder, LAYERS + 1)
    with pytest.raises(ModelError, match="3 layers"):
        TextEncoder.open(models.find(folder))


def test_missing_weights_are_named_rather_than_drawn(folder):
    path = folder / "text_encoder" / "model.safetensors"
    weights = load_file(path)
    del weights["layers.1.mlp.up_proj.weight"]
    save_file(weights, path, {"format": "pt"})
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj\.weight"):
        TextEncoder.open(models.find(folder))


def test_another_kind_of_encoder_is_refused(folder):
    config = json.loads((folder / "text_encoder" / "config.json").read_text())
    config |= {"model_type": "llama", "architectures": ["LlamaModel"]}
    (folder / "text_encoder" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="llama"):
        TextEncoder.open(models.find(folder))


def test_a_damaged_tokenizer_is_named(folder):
    (folder / "tokenizer" / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="tokenizer"):
        TextEncoder.open(models.find(folder))


def test_no_host_is_asked_for_anything(folder, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert TextEncoder.open(models.find(folder)).encode(PROMPT).rows.shape[0] == len(PROMPT)


def test_loading_says_nothing(folder, capfd):
    TextEncoder.open(models.find(folder))
    assert capfd.readouterr() == ("", "")
