"""A wish is checked once, at the door, and says which field is wrong."""

from __future__ import annotations

import dataclasses
import json

import pytest

from pipeline import Request, RequestError, draw_seed, load_presets

LARGEST_SEED = 2**64 - 1


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    return load_presets(tmp_path_factory.mktemp("none"))["firefly"]


@pytest.fixture(scope="module")
def distilled(tmp_path_factory):
    return load_presets(tmp_path_factory.mktemp("none"))["minimax-h3"]


def test_empty_fields_take_the_presets_values(preset):
    request = Request.from_form({"prompt": "  a dog \n", "width": "", "steps": None}, preset)
    assert request.prompt == "a dog"
    assert (request.width, request.height, request.frames) == (
        preset.render.width,
        preset.render.height,
        preset.render.frames,
    )
    assert (request.steps, request.guidance, request.keep) == (
        preset.render.steps,
        preset.render.guidance,
        preset.render.keep,
    )
    assert (request.preset, request.stage, request.threads, request.source) == ("firefly", "render", 0, None)


def test_forms_may_spell_numbers_as_text_or_floats(preset):
    form = {"prompt": "x", "width": " 320 ", "height": 180.0, "steps": "7", "guidance": "2.5", "keep": 0}
    request = Request.from_form(form, preset)
    assert (request.width, request.height, request.steps) == (320, 180, 7)
    assert type(request.height) is int
    assert (request.guidance, request.keep) == (2.5, 0.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", ""),
        ("prompt", " \n\t"),
        ("prompt", 5),
        ("prompt", "x" * 4001),
        ("prompt", "a\0b"),
        ("prompt", "\ud800"),
        ("negative_prompt", "x" * 4001),
        ("width", 31),
        ("width", 2049),
        ("width", "wide"),
        ("width", 320.5),
        ("width", True),
        ("height", "-1"),
        ("height", float("nan")),
        ("frames", 0),
        ("frames", 1_000_000),
        ("frames", "9" * 5000),
        ("steps", 0),
        ("steps", 201),
        ("guidance", -0.1),
        ("guidance", 20.5),
        ("guidance", float("inf")),
        ("keep", 0.96),
        ("keep", -0.01),
        ("threads", -1),
        ("threads", 1.5),
        ("seed", 2**64),
        ("seed", "18446744073709551616"),
        ("seed", "-2"),
        ("seed", "seven"),
        ("seed", 1.5),
        ("seed", 2.0**60),
        ("stage", "final"),
        ("source", "../elsewhere"),
        ("source", "/etc"),
        ("source", ".hidden"),
        ("colour", "blue"),
    ],
)
def test_a_wrong_field_is_named_in_one_sentence(preset, field, value):
    with pytest.raises(RequestError) as caught:
        Request.from_form({"prompt": "a dog", field: value}, preset)
    text = str(caught.value)
    assert caught.value.field == field
    assert text.endswith(".")
    assert "\n" not in text and len(text) < 200


def test_a_missing_prompt_is_refused(preset):
    with pytest.raises(RequestError) as caught:
        Request.from_form({}, preset)
    assert caught.value.field == "prompt"


@pytest.mark.parametrize("seed", [0, 1, LARGEST_SEED, str(LARGEST_SEED), " 42 "])
def test_seeds_of_64_bits_are_taken_exactly(preset, seed):
    assert Request.from_form({"prompt": "x", "seed": seed}, preset).seed == int(seed)


@pytest.mark.parametrize("empty", [None, "", "  ", -1, "-1", -1.0])
def test_an_empty_seed_is_drawn_once(preset, empty):
    seeds = {Request.from_form({"prompt": "x", "seed": empty}, preset).seed for _ in range(8)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_drawn_seeds_are_short_enough_to_copy():
    assert all(0 <= draw_seed() < 2**32 for _ in range(100))


def test_json_round_trip_keeps_every_field(preset):
    words = {"prompt": "一只狗 “runs”", "negative_prompt": "blur", "source": "a-1"}
    request = Request.from_form({**words, "seed": LARGEST_SEED, "keep": 0.3}, preset)
    data = json.loads(json.dumps(request.to_json()))
    assert data["seed"] == str(LARGEST_SEED)
    assert Request.from_json(data) == request


@pytest.mark.parametrize("change", [{"prompt": ""}, {"width": 5}, {"extra": 1}, {"source": 3}])
def test_json_is_validated_like_a_form(preset, change):
    data = Request.from_form({"prompt": "x"}, preset).to_json()
    with pytest.raises(RequestError):
        Request.from_json(data | change)


def test_json_that_lacks_a_field_is_refused(preset):
    data = Request.from_form({"prompt": "x"}, preset).to_json()
    del data["preset"]
    with pytest.raises(RequestError, match="preset"):
        Request.from_json(data)


def test_a_request_cannot_be_changed(preset):
    request = Request.from_form({"prompt": "x"}, preset)
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.seed = 3


def test_guidance_is_refused_where_the_model_has_none(distilled):
    assert Request.from_form({"prompt": "x"}, distilled).guidance == 1.0
    with pytest.raises(RequestError) as caught:
        Request.from_form({"prompt": "x", "guidance": 2}, distilled)
    assert caught.value.field == "guidance"
