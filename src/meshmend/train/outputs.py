"""Memory for the sums that the user gets: used again as soon as nobody holds them, and never before.

So steps do not ask the system for fresh pages each time. Each time the memory is given out it gets a
new owner, an array that all views of it keep alive (JAX too, which may use numpy's memory as its own); when the owner
is gone, so is everybody who could see the memory. Leaves begin where JAX can take them without a copy.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNED = 64
"""Bytes: what XLA asks of memory that it takes over as it is."""
KEPT = 3
"""Blocks kept for later; who holds more sums than that gets fresh memory."""

Floats = npt.NDArray[np.float32]


class Outputs:
    """Float32 arrays of fixed sizes, given out again and again."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._kept: list[tuple[memoryview, weakref.ref[Any]]] = []

    def take(self) -> list[Floats]:
        """Arrays of these sizes, with anything in them, that nobody else holds."""
        for place, (memory, owner) in enumerate(self._kept):
            if owner() is None:
                flat = np.frombuffer(memory, np.float32)
                self._kept[place] = memory, weakref.ref(flat)
                return self._cut(flat)
        memory = self._fresh()
        flat = np.frombuffer(memory, np.float32)
        if len(self._kept) < KEPT:
            self._kept.append((memory, weakref.ref(flat)))
        return self._cut(flat)

    def _fresh(self) -> memoryview:
        raw = np.empty(sum(map(_padded, self._sizes)) * 4 + ALIGNED, np.uint8)
        begin = -raw.ctypes.data % ALIGNED
        return raw[begin : len(raw) - ALIGNED + begin].data

    def _cut(self, flat: Floats) -> list[Floats]:
        begin, out = 0, []
        for size in self._sizes:
            out.append(flat[begin : begin + size])
            begin += _padded(size)
        return out


def _padded(size: int) -> int:
    return -(-size * 4 // ALIGNED) * ALIGNED // 4
