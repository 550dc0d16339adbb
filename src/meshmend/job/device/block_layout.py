"""Where parts and totals are in a worker's block of device memory.

    block   │ part of even rounds │ part of odd rounds │ total │ total of odd rounds │    one per worker, all map it

Two parts, because in a small group (`is_direct`) each member adds up all parts by itself when a round is done: another
one may have its total already, and bring its next part, which then must not be in the place of the last. It cannot
bring the part after that before all have brought the next, and so have added up the last. In larger groups each member
adds up one slice into its total, from where the others take it; all have taken it when they bring their next part.

Two totals, where there may be a larger group: until a round is done, a member may be asked for the total of the round
before, for one that missed it. In a small group that is made again, from parts; one place is enough to put it.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshmend.job.device.base import Block, Place
from meshmend.job.reduction.base import WireFormat

ALIGNED = 512
"""Bytes that every part and total begins on a multiple of."""


DIRECT = 4
"""Members of a group in which each adds up all parts. A round is done half a millisecond earlier than with slices; but
each reads all of them, which costs (members + 1) instead of 3 passes over a gradient."""


def is_direct(members: int) -> bool:
    """Whether the members of a group of this size each add up all parts, and not a slice for the others."""
    return members <= DIRECT


@dataclass(frozen=True)
class BlockLayout:
    """A block for messages of this format, of which the first `size` numbers are summed there."""

    wire: WireFormat
    size: int
    totals: int = 1

    @property
    def nbytes(self) -> int:
        """Of the whole block."""
        return (2 + self.totals) * self._stride

    @property
    def _stride(self) -> int:
        return -(-self.bytes_of(self.size) // ALIGNED) * ALIGNED

    def bytes_of(self, numbers: int) -> int:
        """How many bytes this many numbers take."""
        return numbers * self.wire.kind.dtype.itemsize

    def part(self, block: Block, round: int, begin: int = 0) -> Place:
        """The part of a round, from this number on."""
        return block, (round % 2) * self._stride + self.bytes_of(begin)

    def total(self, block: Block, round: int, begin: int = 0) -> Place:
        """The total of a round, from this number on."""
        return block, (2 + round % self.totals) * self._stride + self.bytes_of(begin)


def layout_for(wire: WireFormat, size: int, ranks: int) -> BlockLayout:
    """The layout of all blocks of a run that has so many workers at most."""
    return BlockLayout(wire, size, 1 if is_direct(ranks) else 2)
