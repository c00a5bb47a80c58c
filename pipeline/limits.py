"""The numbers of a request and their limits, and how a person's text is read as one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pipeline.canvas import MAX_FRAMES, MAX_SIDE, MIN_SIDE
from pipeline.errors import RequestError

LARGEST_EXACT_FLOAT = 2**53


@dataclass(frozen=True)
class Limits:
    """Closed range of one number of a request, and the words it is named with."""

    label: str
    low: float
    high: float


LIMITS = {
    "width": Limits("The width", MIN_SIDE, MAX_SIDE),
    "height": Limits("The height", MIN_SIDE, MAX_SIDE),
    "frames": Limits("The number of frames", 1, MAX_FRAMES),
    "steps": Limits("The number of steps", 1, 200),
    "guidance": Limits("Guidance", 0.0, 20.0),
    "keep": Limits("Keep composition", 0.0, 0.95),
    "threads": Limits("The number of threads", 0, 256),
}
FRACTIONAL = frozenset({"guidance", "keep"})


def check_number(name: str, value: Any) -> int | float:
    """`value` as the number `name` of a request, within its limits; raises `RequestError`."""
    limits = LIMITS[name]
    number = real(value) if name in FRACTIONAL else whole(value)
    if number is None or not limits.low <= number <= limits.high:
        kind = "a number" if name in FRACTIONAL else "a whole number"
        text = f"{limits.label} is {kind} from {limits.low:g} to {limits.high:g}, not {_short(value)}."
        raise RequestError(name, text)
    return number


def whole(value: Any) -> int | None:
    """The integer that `value` spells, or None; a float counts while it is exact."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= LARGEST_EXACT_FLOAT else None
    if not isinstance(value, str):
        return None
    text = value.strip()
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 40:
        return int(text)
    number = real(text) if len(text) <= 40 else None
    return whole(number) if number is not None else None


def real(value: Any) -> float | None:
    """The finite float that `value` spells, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 30 else text[:27] + "..."
