"""A progress bar on stderr for work that is counted in bytes."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_BAR = 24
_REDRAW_SECONDS = 0.2
_LINE_SECONDS = 10.0  # between lines where there is no terminal to redraw on


class ByteMeter:
    """Shows `label`, a bar, bytes done of `total` and the time left. Use as a context manager."""

    def __init__(self, label: str, total: int, stream: TextIO | None = None) -> None:
        self._label, self._total = label, total
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._done = 0
        self._start = self._shown = time.monotonic()

    def __enter__(self) -> ByteMeter:
        if self._terminal:
            self._show(time.monotonic())
        return self

    def __exit__(self, *exception: object) -> None:
        self._show(time.monotonic())
        if self._terminal:
            self._stream.write("\n")

    def advance(self, count: int) -> None:
        """Count `count` more bytes; redraws now and then."""
        self._done += count
        now = time.monotonic()
        if now - self._shown >= (_REDRAW_SECONDS if self._terminal else _LINE_SECONDS):
            self._show(now)

    def _show(self, now: float) -> None:
        self._shown = now
        line = describe(self._label, self._done, self._total, now - self._start)
        self._stream.write(f"\r{line}\x1b[K" if self._terminal else f"{line}\n")
        self._stream.flush()


def describe(label: str, done: int, total: int, seconds: float) -> str:
    """One line of progress, for example `Convert [####----] 1.5 of 3.0 GB, 120 MB/s, 0:12 left`."""
    share = min(1.0, done / total) if total else 1.0
    filled = round(share * _BAR)
    bar = "#" * filled + "-" * (_BAR - filled)
    unit, name = (1e9, "GB") if total >= 1e9 else (1e6, "MB")
    text = f"{label} [{bar}] {done / unit:.2f} of {total / unit:.2f} {name}"
    if done >= total:
        return f"{text} in {_clock(round(seconds))}"
    if done and seconds > 0:
        rate = done / seconds
        text += f", {rate / 1e6:.0f} MB/s, {_clock(round((total - done) / rate))} left"
    return text


def readable(size: int) -> str:
    """`size` bytes in GB or MB."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.2f} MB"


def _clock(seconds: int) -> str:
    hours, rest = divmod(max(0, seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
