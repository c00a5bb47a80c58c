"""A job's progress on a terminal: a bar that redraws itself, or plain lines where nobody watches."""

from __future__ import annotations

import shutil
import time
from typing import TextIO

from pipeline.events import JobStatus
from pipeline.jobs import Job

REDRAW_SECONDS = 0.2
LINE_SECONDS = 10.0
BAR_WIDTH = 24


def watch(job: Job, stream: TextIO) -> JobStatus:
    """Show a job's progress on `stream` until it is over. Carriage returns only when that is a terminal."""
    is_terminal = stream.isatty()
    shown, last = "", 0.0
    while not (status := job.wait(REDRAW_SECONDS)).over:
        if is_terminal:
            _redraw(stream, describe(status))
        elif (status.phase, status.state) != shown or time.monotonic() - last >= LINE_SECONDS:
            shown, last = (status.phase, status.state), time.monotonic()
            stream.write(describe(status) + "\n")
            stream.flush()
    if is_terminal:
        _redraw(stream, "")
        stream.write("\r")
        stream.flush()
    return status


def describe(status: JobStatus) -> str:
    """One line: bar, percentage, phase, step, time left."""
    if status.state == "queued":
        return "waiting"
    filled = round(status.fraction * BAR_WIDTH)
    bar = "#" * filled + "-" * (BAR_WIDTH - filled)
    left = "measuring" if status.eta_seconds is None else f"{clock(status.eta_seconds)} left"
    return f"[{bar}] {status.fraction:4.0%}  {status.phase}{_place(status)}  {left}"


def clock(seconds: float) -> str:
    """Seconds as a person says them: 42 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _place(status: JobStatus) -> str:
    if status.phase in ("denoise", "preview") and status.steps:
        return f"  step {min(status.step + 1, status.steps)}/{status.steps}"
    return ""


def _redraw(stream: TextIO, line: str) -> None:
    width = shutil.get_terminal_size().columns - 1
    stream.write("\r" + line[:width].ljust(width))
    stream.flush()
