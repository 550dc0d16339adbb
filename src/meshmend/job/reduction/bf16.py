"""bf16, the upper half of a float32, as uint16: numpy has no such type.

Numbers are only kept and sent so. They are added in float32, and rounded once after that: to nearest, ties to even,
as everybody does. Inf stays Inf. All NaN become one and the same, so that the bits do not depend on the order in which
two of them met.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshmend.base.kernels import kernel

Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.uint16]
Bits = npt.NDArray[np.uint32]

BLOCK = 1 << 14
"""Numbers added at a time: they stay in the processor's cache while part after part is added to them."""


def load() -> None:
    """Have the loops loaded before anybody waits for them: it takes a third of a second."""
    add([np.zeros(1, np.uint16)], np.empty(1, np.uint16))


def put(floats: Floats, out: Halves) -> None:
    """Round to bf16."""
    if len(floats):
        _round(floats.view(np.uint32), out)


def take(halves: Halves, out: Floats) -> None:
    """The float32 that bf16 stand for; nothing is lost."""
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
