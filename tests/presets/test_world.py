"""The toy world: deterministic, the same picture at both sizes, captions that say what is shown."""

from __future__ import annotations

import random

import numpy as np
import pytest
from recipe import captions, prompts, world
from recipe.world import Scene


def test_a_scene_renders_the_same_twice_and_another_place_differs() -> None:
    scene = Scene("dog", "rain", "right", 0)
    once, twice = world.render_clip(scene), world.render_clip(scene)
    assert once.shape == (22, 112, 192, 3)
    assert np.array_equal(once, twice)
    assert not np.array_equal(once, world.render_clip(Scene("dog", "rain", "right", 1)))


@pytest.mark.parametrize("setting", world.SETTINGS)
def test_the_full_size_is_the_small_one_enlarged(setting: str) -> None:
    scene = Scene("fox", setting, "jump", 1)
    small = world.render_frame(scene, 1, 9).astype(float)
    large = world.render_frame(scene, 2, 9).astype(float)
    halved = large.reshape(112, 2, 192, 2, 3).mean(axis=(1, 3))
    assert np.abs(halved - small).mean() < 2.0
    wrong = world.render_frame(Scene("fox", setting, "jump", 2), 1, 9)
    assert np.abs(halved - wrong).mean() > 4.0


@pytest.mark.parametrize(
    ("motion", "step"),
    [("right", (4, 0)), ("left", (-4, 0)), ("up", (0, -4)), ("down", (0, 4)), ("still", (0, 0))],
)
def test_a_motion_is_one_patch_a_latent(motion: str, step: tuple[int, int]) -> None:
    scene = Scene("car", "field", motion, 1)
    before, after = world.corner(scene, 4), world.corner(scene, 8)
    assert (after[0] - before[0], after[1] - before[1]) == (4 * step[0], 4 * step[1])


def test_rain_repeats_with_the_period_of_a_latent() -> None:
    frames = [world.background("rain", 1, index) for index in range(5)]
    assert np.array_equal(frames[0], frames[4])
    assert not np.array_equal(frames[0], frames[1])


def test_no_training_scene_is_a_held_out_pair() -> None:
    shown = world.training_scenes()
    assert not {(s.noun, s.setting) for s in shown} & world.HELD_OUT_SETTINGS
    assert not {(s.noun, s.motion) for s in shown} & world.HELD_OUT_MOTIONS
    # Every word is nevertheless trained with others, and nothing else is left out.
    assert {s.noun for s in shown} == set(world.NOUNS)
    assert {s.setting for s in shown} == set(world.SETTINGS)
    assert {s.motion for s in shown} == set(world.MOTIONS)
    left_out = len(world.all_scenes()) - len(shown)
    assert left_out == world.PLACES * (4 * 6 + 3 * 7)


def test_the_evaluation_knows_which_prompts_were_trained() -> None:
    shown = {(s.noun, s.setting, s.motion) for s in world.training_scenes()}
    assert len(prompts.ALL) >= 42
    assert len(prompts.UNSEEN) >= 14
    assert all((p.noun, p.setting, p.motion) in shown for p in prompts.TRAINED)
    assert all((p.noun, p.setting, p.motion) not in shown for p in prompts.UNSEEN)
    for part, names in (("noun", world.NOUNS), ("setting", world.SETTINGS), ("motion", world.MOTIONS)):
        assert {getattr(p, part) for p in prompts.TRAINED} == set(names)


def test_captions_follow_the_seed_and_name_their_noun() -> None:
    for noun in world.NOUNS:
        scene = Scene(noun, "night", "left", 0)
        texts = [captions.caption(scene, random.Random(seed)) for seed in range(40)]
        assert texts == [captions.caption(scene, random.Random(seed)) for seed in range(40)]
        assert len(set(texts)) > 30
        words = captions.NOUN_WORDS[noun]
        assert all(any(word.lower() in text.lower() for word in words) for text in texts)
