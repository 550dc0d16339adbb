"""Sizes and times as people write them: 102MB, 64MiB, 300us, 4h."""

from __future__ import annotations

import re

from meshmend.errors import MeshmendError

SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def read_bytes(text: str) -> float:
    """102MB, 64MiB, 1e6 …"""
    match = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([kmgt]?)(i?)b?", text.strip().lower())
    try:
        if match:
            return float(match[1]) * float(1024 if match[3] else 1000) ** " kmgt".index(match[2] or " ")
    except ValueError:
        pass
    raise MeshmendError(f"cannot read {text!r} as a number of bytes: expected something like 102MB, 64MiB or 1e6")


def read_rate(text: str) -> float:
    """50mbit, 1gbit, 2.5gbit …, as `tc` has them: bits per second."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmg]?)bit(?:/s)?", text.strip().lower())
    if match and float(match[1]):
        return float(match[1]) * 1000.0 ** " kmg".index(match[2] or " ")
    raise MeshmendError(f"cannot read {text!r} as a rate: expected bits per second, such as 50mbit or 1gbit")


def read_seconds(text: str) -> float:
    """300us, 1.5ms, 2s, 5min, 4h, 2d …"""
    match = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-zµ]+)", text.strip().lower())
    try:
        if match and match[2] in SECONDS:
            return float(match[1]) * SECONDS[match[2]]
    except ValueError:
        pass
    raise MeshmendError(
        f"cannot read {text!r} as a time: expected a number with its unit ({', '.join(SECONDS)}), such as 300us or 4h"
    )


def size_text(nbytes: float) -> str:
    """In the largest unit that leaves a whole digit."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.4g} {unit}"
    return f"{nbytes:.4g} bytes"


def time_text(seconds: float) -> str:
    """In seconds or less."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 0.9995:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def plural(count: int, noun: str, nouns: str = "") -> str:
    """1 worker, 2 workers, 1,000 workers; `nouns` where an s is not enough."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"
