"""What stays open between jobs."""

from __future__ import annotations

import pytest

from pipeline.workshop import CAPTIONS_KEPT, Workshop

PROMPT = "a dog"


@pytest.fixture
def workshop(tiny):
    made = Workshop()
    made.use(tiny["tiny"], 1)
    yield made
    made.close()


def test_a_prompt_is_encoded_once_and_a_few_are_remembered(workshop):
    calls = []
    workshop._encoder()._model.register_forward_hook(lambda *_: calls.append(1))
    first = workshop.caption(PROMPT)
    assert workshop.caption(PROMPT) is first
    assert len(calls) == 1
    for index in range(CAPTIONS_KEPT - 1):
        workshop.caption(f"other {index}")
    assert workshop.caption(PROMPT) is first
    workshop.caption("one more")
    assert workshop.caption(PROMPT) is first
    assert len(calls) == 1 + CAPTIONS_KEPT
    workshop.caption("other 0")
    assert len(calls) == 2 + CAPTIONS_KEPT


def test_another_model_forgets_the_captions_of_the_last(workshop, tiny):
    first = workshop.caption(PROMPT)
    workshop.use(tiny["firefly"], 1)
    assert workshop.caption(PROMPT).rows.shape[1] != first.rows.shape[1]
