"""The bar never falls, and the time left is measured or unknown, never a guess."""

from __future__ import annotations

import pytest

from pipeline.progress import Progress
from pipeline.terminal import clock

PHASES = ("load", "text", "denoise", "decode", "export")
KNOWN = {"load": 2.0, "text": 1.0, "denoise": 60.0, "decode": 30.0, "export": 7.0}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Clock:
    return Clock()


def test_without_history_the_time_left_is_unknown_until_it_can_be_measured(time):
    progress = Progress(PHASES, {"export": 2.0}, time)
    assert progress.eta() is None
    progress.begin("denoise")
    time.now += 10.0
    progress.advance(0.25)
    assert progress.eta() is None  # Nothing is known of decoding yet.
    progress.expect_if_unknown("decode", 5.0)
    assert progress.eta() == pytest.approx(30.0 + 5.0 + 2.0)


def test_history_speaks_first_and_the_own_pace_later(time):
    progress = Progress(PHASES, KNOWN, time)
    progress.begin("denoise")
    assert progress.eta() == pytest.approx(97.0)
    time.now += 30.0
    progress.advance(0.25)
    assert progress.eta() == pytest.approx(90.0 + 37.0)
    time.now += 10.0
    assert progress.eta() == pytest.approx(80.0 + 37.0)


def test_what_is_measured_already_is_not_replaced(time):
    progress = Progress(PHASES, KNOWN, time)
    progress.expect_if_unknown("decode", 1.0)
    progress.begin("denoise")
    assert progress.eta() == pytest.approx(97.0)


def test_a_resumed_phase_is_judged_by_what_this_run_adds(time):
    progress = Progress(PHASES, KNOWN, time)
    progress.begin("denoise", 0.5)
    assert progress.eta() == pytest.approx(30.0 + 37.0)
    time.now += 10.0
    progress.advance(0.75)
    assert progress.eta() == pytest.approx(10.0 + 37.0)


def test_the_bar_weighs_phases_by_their_seconds_and_never_falls(time):
    progress = Progress(PHASES, KNOWN, time)
    seen = [progress.fraction()]
    for phase in PHASES:
        progress.begin(phase)
        for part in (0.25, 0.5, 1.0):
            time.now += KNOWN[phase] / 3
            progress.advance(part)
            seen.append(progress.fraction())
    assert seen == sorted(seen)
    assert seen[0] == 0.0 and seen[-1] < 1.0
    assert seen[9] == pytest.approx(0.63, abs=0.01)


def test_the_bar_stands_when_estimates_turn_out_wrong(time):
    progress = Progress(PHASES, {}, time)
    progress.begin("denoise")
    time.now += 5.0
    progress.advance(0.9)
    before = progress.fraction()
    for phase in ("load", "text", "denoise"):
        progress.expect_if_unknown(phase, 1.0)
    for phase in ("decode", "export"):
        progress.expect_if_unknown(phase, 1000.0)
    assert progress.fraction() == before


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (59.4, "59 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")]
)
def test_durations_are_said_as_a_person_would(seconds, said):
    assert clock(seconds) == said
