"""Quantities as people write and read them: the one parser and the one printer of sizes, rates, times and counts.

| quantity | read | written | unit inside |
|---|---|---|---|
| size | 102MB, 64MiB, 1e6 | 102 MB | bytes |
| rate of a line | 50mbit, 1gbit | – | bits per second |
| duration | 300us, 1.5ms, 30s, 5min, 4h, 2d, 1w | 300 µs, 5 min, -2 ms | seconds |
| frequency | 0.08%/day, 0.3/year | – | events per hour |
| share | 15%, 0.15 | 15.0 % | a part of 1 |
| count | – | 1 worker, 2 workers | |
| ranks | – | workers 1 and 2, workers 0 to 7 | |
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction

from meshmend.errors import MeshmendError

SECONDS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0,
}  # fmt: skip
HOUR = 3600.0
HOURS_PER = {"hour": 1.0, "h": 1.0, "day": 24.0, "d": 24.0, "week": 168.0, "w": 168.0, "year": 8766.0, "y": 8766.0}
_NUMBER = r"([0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)"


def read_bytes(text: str) -> float:
    """102MB, 64MiB, 1e6, in bytes."""
    match = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([kmgt]?)(i?)b?", text.strip().lower())
    try:
        if match:
            return float(match[1]) * float(1024 if match[3] else 1000) ** " kmgt".index(match[2] or " ")
    except ValueError:
        pass
    raise MeshmendError(f"cannot read {text!r} as a number of bytes: expected something like 102MB, 64MiB or 1e6")


def read_rate(text: str) -> float:
    """50mbit, 1gbit or 2.5gbit, as `tc` writes them, in bits per second."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmg]?)bit(?:/s)?", text.strip().lower())
    if match and float(match[1]):
        return float(match[1]) * 1000.0 ** " kmg".index(match[2] or " ")
    raise MeshmendError(f"cannot read {text!r} as a rate: expected bits per second, such as 50mbit or 1gbit")


def read_duration(text: str, what: str = "a time", error: type[MeshmendError] = MeshmendError) -> float:
    """300us, 1.5ms, 2s, 5min, 4h, 2d or 1w, in seconds; `what` names the value in the error."""
    match = re.fullmatch(rf"{_NUMBER}\s*([a-zµ]+)", text.strip().lower())
    if match and match[2] in SECONDS:
        return float(match[1]) * SECONDS[match[2]]
    raise error(
        f"cannot read {text!r} as {what}: expected 0 or more with a unit ({', '.join(SECONDS)}), such as 300us or 4h"
    )


def read_frequency(text: str, what: str = "a rate", error: type[MeshmendError] = MeshmendError) -> float:
    """0.08%/day or 0.3/year, in events per hour."""
    match = re.fullmatch(rf"{_NUMBER}\s*(%?)\s*/\s*([a-z]+)", text.strip().lower())
    if match and match[3] in HOURS_PER:
        return float(match[1]) / (100 if match[2] else 1) / HOURS_PER[match[3]]
    raise error(f"cannot read {text!r} as {what}: expected something like 0.08%/day or 0.3/year")


def read_share(text: str, what: str = "a share", error: type[MeshmendError] = MeshmendError) -> float:
    """15% or 0.15, as a part of 1."""
    match = re.fullmatch(rf"{_NUMBER}\s*(%?)", text.strip().lower())
    if match:
        return float(match[1]) / (100 if match[2] else 1)
    raise error(f"cannot read {text!r} as {what}: expected a share such as 15% or 0.15")


def size_text(nbytes: float) -> str:
    """In the largest unit that leaves a whole digit."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.4g} {unit}"
    return f"{nbytes:.4g} bytes"


def duration_text(seconds: float) -> str:
    """In the largest unit, from days to µs, that leaves a whole digit; `never` if it is infinite."""
    if seconds == math.inf:
        return "never"
    if seconds < 0:
        return f"-{duration_text(-seconds)}"
    for unit, scale in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def milliseconds(seconds: float, digits: int = 3) -> str:
    """A number of milliseconds with so many significant digits (those of 1 ms), for the columns of a table."""
    value, places = 1e3 * seconds, digits - 1
    while places > 0 and round(value, places) >= 10.0 ** (digits - places):
        places -= 1
    return f"{value:,.{places}f}"


def percent(share: float, digits: int | None = None, *, sign: bool = False) -> str:
    """A part of 1 in percent; unless `digits` are given, small shares get more of them."""
    if digits is None:
        digits = 0 if abs(share) >= 1 else 1 if abs(share) >= 0.1 else 2
    return f"{100 * share:{'+' * sign}.{digits}f} %"


FEW = 4
"""How many ranks are named one by one if they follow each other."""


def workers(ranks: Sequence[int]) -> str:
    """Name workers, as in "worker 3", "workers 1 and 2", "workers 0 to 7", "no workers"."""
    if len(ranks) < 2:
        return f"worker {ranks[0]}" if ranks else "no workers"
    if len(ranks) > FEW and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"workers {ranks[0]} to {ranks[-1]}"
    return f"workers {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def plural(count: int, noun: str, nouns: str = "") -> str:
    """1 worker, 2 workers, 1,000 workers; `nouns` where an s is not enough."""
    return f"{count:,} {agree(count, noun, nouns)}"


def agree(count: float | Fraction, one: str, many: str = "") -> str:
    """The word for so many, without the number: worker, workers; joins, join; half a link is a link."""
    return one if 0 < count <= 1 else many or one + "s"
