"""How far a job is, and how long it still takes, from measured time only.

Phases weigh by their expected seconds, learned from earlier jobs of the same model. What is running is
judged by its own pace once that can be measured; before anything is known the ETA is None, never a guess.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SHARES = {"load": 4.0, "text": 2.0, "preview": 20.0, "denoise": 60.0, "decode": 10.0, "export": 4.0}
"""Weights of the bar before any time is known; they never become an ETA."""
MEASURABLE_FRACTION = 0.02
MEASURABLE_SECONDS = 0.25


class Progress:
    """The phases of one job. Not thread-safe: `Job` guards it."""

    def __init__(
        self,
        phases: tuple[str, ...],
        expected: dict[str, float | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._phases = phases
        self._expected = {phase: (expected or {}).get(phase) for phase in phases}
        self._clock = clock
        self._index = 0
        self._done = 0.0
        self._base = 0.0
        self._begun = self._moved = clock()
        self._highest = 0.0
        self._spent: dict[str, float] = {}

    def expect_if_unknown(self, phase: str, seconds: float) -> None:
        """Set the expected seconds of a phase that has none."""
        if self._expected.get(phase) is None:
            self._expected[phase] = seconds

    def begin(self, phase: str, done: float = 0.0) -> None:
        """Enter a phase of which `done` (0 to 1) was finished by an earlier run; those before it are done."""
        now = self._clock()
        if phase != self._phases[self._index]:
            self._spent[self._phases[self._index]] = now - self._begun
        self._index = self._phases.index(phase)
        self._begun = self._moved = now
        self._done = self._base = done

    def advance(self, fraction: float) -> None:
        """The current phase is `fraction` (0 to 1) done."""
        self._done = min(1.0, max(self._done, fraction))
        self._moved = self._clock()

    def fraction(self) -> float:
        """Share of the whole job that is done, 0 to 1; it never falls."""
        weights = self._weights()
        done = sum(weights[phase] for phase in self._phases[: self._index])
        done += weights[self._phases[self._index]] * self._done
        self._highest = max(self._highest, min(done / sum(weights.values()), 0.999))
        return self._highest

    def eta(self) -> float | None:
        """Seconds that remain, or None while some part of them is unknown."""
        parts = [self._current_remaining(), *(self._expected[p] for p in self._phases[self._index + 1 :])]
        if any(part is None for part in parts):
            return None
        return max(0.0, sum(part for part in parts if part is not None))

    def _current_remaining(self) -> float | None:
        """Seconds left of the current phase: by its own pace once measurable, else by what was expected."""
        now = self._clock()
        spent, gained = self._moved - self._begun, self._done - self._base
        if gained >= MEASURABLE_FRACTION and spent >= MEASURABLE_SECONDS:
            return max(0.0, spent / gained * (1.0 - self._done) - (now - self._moved))
        expected = self._expected[self._phases[self._index]]
        return None if expected is None else max(0.0, expected * (1.0 - self._base) - (now - self._begun))

    def _weights(self) -> dict[str, float]:
        """Seconds of each phase where all are known, fixed shares otherwise."""
        known: dict[str, float] = {}  # no weight is 0, so that every phase moves the bar
        for phase in self._phases:
            seconds = self._spent.get(phase, self._expected[phase])
            if seconds is None:
                return {name: SHARES[name] for name in self._phases}
            known[phase] = max(seconds, 0.01)
        return known
