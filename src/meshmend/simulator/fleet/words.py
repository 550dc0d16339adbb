"""Times and rates as people write them: `30s`, `5min`, `4h`, `2d`; `host=0.08%/day,link=0.005%/day`; `host=4h,link=2h`.

Inside the fleet simulation every time is in hours and every rate in failures an hour of one thing.
"""

from __future__ import annotations

import math
import re

from meshmend.errors import SimulateError

KINDS = ("chip", "board", "host", "link")
"""What can fail, each by itself and with its own rate."""
HOURS = {"s": 1 / 3600, "min": 1 / 60, "h": 1.0, "d": 24.0, "w": 168.0}
PER = {"hour": 1.0, "h": 1.0, "day": 24.0, "d": 24.0, "week": 168.0, "w": 168.0, "year": 8766.0, "y": 8766.0}
_NUMBER = r"(-?[0-9]+(?:\.[0-9]*)?(?:e-?[0-9]+)?)"


def hours(text: str, what: str = "a time") -> float:
    """`30s`, `5min`, `4h`, `2d` or `1w`, in hours."""
    match = re.fullmatch(rf"{_NUMBER}\s*(s|min|h|d|w)", text.strip().lower())
    if not match:
        raise SimulateError(f"cannot read {text!r} as {what}: expected something like 30s, 5min, 4h, 2d or 1w")
    return float(match[1]) * HOURS[match[2]]


def duration(value: float) -> str:
    """Hours as people read them."""
    if value == math.inf:
        return "never"
    for unit, size in (("d", 24.0), ("h", 1.0), ("min", 1 / 60)):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 3600:.3g} s"


def rates(text: str) -> dict[str, float]:
    """`host=0.08%/day,link=0.005%/day`: failures of one such thing in an hour, by kind."""
    out = {}
    for kind, value in _by_kind(text, "--rate", "host=0.08%/day"):
        match = re.fullmatch(rf"{_NUMBER}\s*(%?)\s*/\s*([a-z]+)", value)
        if not match or match[3] not in PER:
            raise SimulateError(
                f"cannot read the rate {value!r} of {kind}: expected something like 0.08%/day or 0.3/year"
            )
        out[kind] = float(match[1]) / (100 if match[2] else 1) / PER[match[3]]
    return out


def repairs(text: str) -> dict[str, float]:
    """`4h` for everything, or `host=4h,link=2h`: the mean time until such a thing works again, in hours."""
    if "=" not in text:
        return dict.fromkeys(KINDS, hours(text, "a repair time"))
    return {kind: hours(value, f"the repair time of {kind}") for kind, value in _by_kind(text, "--repair", "host=4h")}


def _by_kind(text: str, option: str, example: str) -> list[tuple[str, str]]:
    out = []
    for part in text.split(","):
        kind, equals, value = (word.strip().lower() for word in part.partition("="))
        if not equals or kind not in KINDS:
            raise SimulateError(
                f"cannot read {part.strip()!r} in {option}: expected {', '.join(KINDS[:-1])} or {KINDS[-1]}, "
                f"then = and a value, such as {example}"
            )
        out.append((kind, value))
    return out
