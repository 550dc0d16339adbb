"""Sums whose large leaves travel as bf16, the upper half of a float32: half the bytes.

bf16 is stored as uint16, because numpy has no such type. Numbers are only stored and sent that way. They are added
in float32 and then rounded once: to nearest, ties to even, as all libraries do. Inf stays Inf. Every NaN becomes the
same NaN, so that the bits do not depend on the order in which two of them met.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from meshmend.base.kernels import kernel
from meshmend.job.reduction.base import Flat
from meshmend.job.reduction.float32 import Float32
from meshmend.job.reduction.layout import Layout, Leaf, Rooms

Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.uint16]
Bits = npt.NDArray[np.uint32]

BLOCK = 1 << 14
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
        add([np.zeros(1, np.uint16)], np.empty(1, np.uint16))

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
        _round(floats.view(np.uint32), out)


def take(halves: Halves, out: Floats) -> None:
    """Widen bf16 to float32; nothing is lost."""
    if len(halves):
        _widen(halves, out.view(np.uint32))


def add(parts: Sequence[Halves], out: Halves) -> None:
    """Add up parts in float32, always in the same order, and round once."""
    total, one = np.empty((2, min(BLOCK, len(out))), np.float32)
    for begin in range(0, len(out), BLOCK):
        place = out[begin : begin + BLOCK]
        here, size = slice(begin, begin + len(place)), len(place)
        take(parts[0][here], total[:size])
        for part in parts[1:]:
            take(part[here], one[:size])
            np.add(total[:size], one[:size], out=total[:size])
        put(total[:size], place)


@kernel
def _round(bits: Bits, out: Halves) -> None:
    """Add just less than half of what is cut off, or half where the last bit that stays is odd; then cut."""
    for i in range(len(bits)):
        number = bits[i]
        kept = (number + np.uint32(0x7FFF) + (number >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
        nan = number & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000)
        out[i] = np.uint16(0x7FC0) if nan else np.uint16(kept)


@kernel
def _widen(halves: Halves, out: Bits) -> None:
    """Put zeros below."""
    for i in range(len(halves)):
        out[i] = np.uint32(halves[i]) << np.uint32(16)
