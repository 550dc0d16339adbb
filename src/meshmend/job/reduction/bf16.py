"""Sums whose large leaves travel as bf16, the upper half of a float32: half the bytes.

bf16 is stored as uint16, because numpy has no such type. Numbers are only stored and sent that way. They are added
in float32 and then rounded once: to nearest, ties to even, as all libraries do. Inf stays Inf. Every NaN becomes the
same NaN, so that the bits do not depend on the order in which two of them met.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.base.kernels import kernel
from meshmend.job.reduction.base import Flat
from meshmend.job.reduction.float32 import Float32
from meshmend.job.reduction.layout import Layout, Leaf, Rooms

Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.uint16]

BLOCK = 1 << 16
"""Numbers added at a time: they stay in the processor's cache while part after part is added to them."""
SMALL = 64
"""Leaves of fewer numbers always travel as float32: losses need their digits, and there is nothing to save."""


class Bf16(Float32):
    """Float32 sums of a worker's lanes in private memory; large leaves are rounded to bf16 for the message.

        │ head: large leaves, two numbers in the space of one float32 │ small leaves and integers, as float32 │

    So no digits are lost between lanes, nor when lanes are added after the sum was written to the message.
    """

    number = 2
    wire = packing = "bf16"
    sliceable = False

    def __init__(self, layout: Layout, lanes: int) -> None:
        super().__init__(layout, lanes)
        sizes = [leaf.size for leaf in layout.leaves if travels_as_bf16(leaf)]
        self.head = -(-sum(sizes) // 2)
        self.size = self.head + layout.size - sum(sizes)
        self._sums = np.empty(layout.size, np.float32)

    @classmethod
    def packs(cls, leaf: Leaf) -> bool:
        """Whether a leaf travels as bf16."""
        return travels_as_bf16(leaf)

    @classmethod
    def warm(cls) -> None:
        """Load the compiled loops, which takes a third of a second."""
        one, out = np.zeros(1, np.uint16), np.empty(1, np.uint16)
        for count in range(1, 5):
            add([one] * count, out)

    @classmethod
    def combine_head(cls, parts: Sequence[Flat], out: Flat) -> None:
        """Add up pairs of bf16."""
        add([part.view(np.uint16) for part in parts], out.view(np.uint16))

    def add(self, buffer: Flat, arrays: Iterable[Flat], *, first: bool) -> None:
        """Add one lane's gradients, in float32."""
        del buffer
        self.layout.add(arrays, self._sums, first=first)

    def put(self, buffer: Flat) -> None:
        """Round the sum so far."""
        for begin, place in zip(self.layout.bounds, self.places(buffer), strict=False):
            mine = self._sums[begin : begin + len(place)]
            if place.dtype == np.uint16:
                put(mine, place)
            else:
                place[:] = mine

    def finish(self, total: Flat, step: int, rooms: Rooms = ()) -> list[Flat] | None:
        """The summed leaves; unpacking makes new arrays anyway."""
        del rooms
        sums = [*self.parts(total)]
        self.layout.check_integers(sums, step)
        return self.layout.shaped(sums, copy=False)

    def parts(self, total: Flat) -> Iterator[Flat]:
        """The leaves of a total, as new arrays."""
        for place in self.places(total):
            sums = np.empty(len(place), np.float32)
            if place.dtype == np.uint16:
                take(place, sums)
            else:
                sums[:] = place
            yield sums

    def places(self, buffer: Flat) -> Iterator[Flat]:
        """As uint16 where it is bf16."""
        halves, rest = buffer[: self.head].view(np.uint16), buffer[self.head :]
        for leaf in self.layout.leaves:
            if travels_as_bf16(leaf):
                yield halves[: leaf.size]
                halves = halves[leaf.size :]
            else:
                yield rest[: leaf.size]
                rest = rest[leaf.size :]


def travels_as_bf16(leaf: Leaf) -> bool:
    """Whether a leaf is rounded on its way."""
    return leaf.size >= SMALL and not leaf.whole


def put(floats: Floats, out: Halves) -> None:
    """Round to bf16."""
    if len(floats):
        _round(floats, out)


def take(halves: Halves, out: Floats) -> None:
    """Widen bf16 to float32; nothing is lost."""
    if len(halves):
        _widen(halves, out)


def add(parts: Sequence[Halves], out: Halves) -> None:
    """Add up parts in float32, always in the same order, and round once.

    Two parts need no float32 in memory; more parts keep it in the processor's cache. A call of a compiled loop takes as
    long as a thousand numbers, hence blocks that are larger than those of float32.
    """
    if len(parts) == 2:
        _add_two(parts[0], parts[1], out)
        return
    total = np.empty(min(BLOCK, len(out)), np.float32)
    for begin in range(0, len(out), BLOCK):
        place = out[begin : begin + BLOCK]
        first, *others = (part[begin : begin + BLOCK] for part in parts)
        sums = total[: len(place)]
        if not others:
            _widen(first, sums)
            _round(sums, place)
            continue
        _add_first(first, others[0], sums)
        for part in others[1:-1]:
            _add_one(part, sums)
        _add_last(sums, others[-1], place)


@kernel
def _bf16(number: Any) -> Any:
    """Add just less than half of what is cut off, or half where the last bit that stays is odd; then cut."""
    bits = np.float32(number).view(np.uint32)
    kept = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.uint16(kept) if number == number else np.uint16(0x7FC0)


@kernel
def _float32(half: Any) -> Any:
    """Put zeros below."""
    return np.uint32(np.uint32(half) << np.uint32(16)).view(np.float32)


@kernel
def _round(numbers: Floats, out: Halves) -> None:
    for i in range(len(out)):
        out[i] = _bf16(numbers[i])


@kernel
def _widen(halves: Halves, out: Floats) -> None:
    for i in range(len(out)):
        out[i] = _float32(halves[i])


@kernel
def _add_two(one: Halves, other: Halves, out: Halves) -> None:
    for i in range(len(out)):
        out[i] = _bf16(_float32(one[i]) + _float32(other[i]))


@kernel
def _add_first(one: Halves, other: Halves, total: Floats) -> None:
    for i in range(len(total)):
        total[i] = _float32(one[i]) + _float32(other[i])


@kernel
def _add_one(part: Halves, total: Floats) -> None:
    for i in range(len(total)):
        total[i] += _float32(part[i])


@kernel
def _add_last(total: Floats, part: Halves, out: Halves) -> None:
    for i in range(len(out)):
        out[i] = _bf16(total[i] + _float32(part[i]))
