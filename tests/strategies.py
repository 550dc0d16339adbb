"""Hypothesis strategies and small checks that several tests use."""

from __future__ import annotations

import copy
import math
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st

from meshmend import Mesh


@st.composite
def meshes(draw: st.DrawFn, most: int = 12) -> Mesh:
    """Any connected mesh up to `most` x `most`: any wrap, any dead chips and links."""
    rows, cols = draw(st.integers(1, most)), draw(st.integers(1, most))
    wrap = (rows > 2 and draw(st.booleans()), cols > 2 and draw(st.booleans()))
    mesh = Mesh(rows, cols, wrap)
    chips = draw(st.sampled_from([0.0, 0.03, 0.1, 0.3]))
    links = draw(st.sampled_from([0.0, 0.03, 0.1, 0.3]))
    seed = draw(st.integers(0, 2**32 - 1))
    if mesh.size * chips < mesh.size - 1:
        mesh = mesh.fail_random(seed, chips=chips)
    return mesh.fail_random(seed + 1, links=links).largest()


SPEEDS = [Fraction(1, 2), Fraction(3, 4), Fraction(1, 4), Fraction(7, 10)]


@st.composite
def all_meshes(draw: st.DrawFn, most: int = 5) -> Mesh:
    """Any connected mesh of two or three dimensions, up to `most` along a side, also with slow links and slow axes."""
    dims = draw(st.lists(st.integers(1, most), min_size=2, max_size=3))
    wrap = tuple(side > 2 and draw(st.booleans()) for side in dims)
    axes = tuple(draw(st.sampled_from([Fraction(1), Fraction(1), *SPEEDS[:2]])) for _ in dims)
    mesh = Mesh(dims[0], dims[1], wrap, layers=(*dims, 1)[2], axis_speed=axes)
    seed = draw(st.integers(0, 2**32 - 1))
    rate = draw(st.sampled_from([0.0, 0.05, 0.2]))
    if mesh.size > 2:
        mesh = mesh.fail_random(seed, chips=min(int(rate * mesh.size), mesh.size - 1), links=rate).largest()
    random = np.random.default_rng(seed)
    slow = random.permutation(len(mesh.links))[: draw(st.sampled_from([0, 0, 1, 3]))]
    picked = [mesh.ends(*mesh.links[i].tolist()) for i in slow]
    return replace(mesh, slow=frozenset((mesh.link(link), SPEEDS[int(random.integers(4))]) for link in picked))


def numbers(seed: int, rows: int, width: int) -> np.ndarray:
    """Integers whose sums are exact."""
    return np.random.default_rng(seed).integers(-(10**6), 10**6, (rows, width))


DEEP: Any = []
for _ in range(80):
    DEEP = [DEEP]
WRONG = [
    None, True, False, 0, -1, 1, 7, 2**31, 2**40, 2**63, 10**30, -(10**300), 0.5, 1e308, math.nan, math.inf, "", "x",
    "é\0\n", "../..", "1", [], [[]], {}, {"a": 1}, [0, 1, 2], [-1, 10**12], DEEP,
]  # fmt: skip
"""What may stand in a file of JSON where something else should."""


@st.composite
def damaged(draw: st.DrawFn, value: Any) -> Any:
    """A value of JSON in which one thing is wrong, at any depth: changed, missing, doubled or too much."""
    value = copy.deepcopy(value)
    spots = [
        (inside, key)
        for inside in _containers(value)
        for key in ([*inside] if isinstance(inside, dict) else range(len(inside)))
    ]
    if not spots:
        return draw(st.sampled_from(WRONG))
    inside, key = draw(st.sampled_from(spots))
    match draw(st.sampled_from(["change", "change", "change", "remove", "add"])):
        case "change":
            inside[key] = draw(st.sampled_from(WRONG))
        case "remove":
            del inside[key]
        case "add" if isinstance(inside, dict):
            inside["unknown"] = draw(st.sampled_from(WRONG))
        case _:
            inside.insert(key, inside[key])
    return value


def _containers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for inside in value.values() if isinstance(value, dict) else value:
            yield from _containers(inside)


@st.composite
def damaged_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes of which some are changed, missing, doubled or strange."""
    begin = draw(st.integers(0, max(0, len(data) - 1)))
    end = min(len(data), begin + draw(st.sampled_from([0, 1, 2, 8, 100, len(data)])))
    middle = draw(st.sampled_from([b"", data[begin:end] * 2, b"\0" * 9, b"9" * 5000, b"[" * 100_000, b"\xff", b"NaN"]))
    return data[:begin] + middle + data[end:]


@st.composite
def misshapen(draw: st.DrawFn, leaves: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The arrays of a state, of which one is missing, or has another name, type or shape, or other numbers."""
    found = list(leaves)
    at = draw(st.integers(0, len(found) - 1))
    name, array = found[at]
    match draw(st.sampled_from(["missing", "name", "type", "flat", "short", "empty", "zeros"])):
        case "missing":
            del found[at]
        case "name":
            found[at] = draw(st.sampled_from(["other", f"{name}.more", *(other for other, _ in leaves)])), array
            found = [*dict(found).items()]
        case "type":
            found[at] = name, array.astype(draw(st.sampled_from(["float32", "float64", "int8", "uint8", "int64"])))
        case "flat":
            found[at] = name, array.reshape(-1)
        case "short":
            found[at] = name, array.reshape(-1)[:-1]
        case "empty":
            found[at] = name, np.zeros(0, array.dtype)
        case _:
            found[at] = name, np.zeros_like(array)
    return found


@contextmanager
def modest(most: int = 32 << 20) -> Iterator[None]:
    """What happens inside must not take more memory than this, not even for a moment."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= most, f"{peak:,} bytes"
