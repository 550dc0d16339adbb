"""Where a part and totals are in a worker's block of device memory.

    block   │ part │ total of even rounds │ total of odd rounds │        one per worker, mapped by all members

Two totals, because a member may still take the last one from the others while they already add up the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshmend.job.device.base import Block, Place
from meshmend.job.reduction.base import WireFormat

ALIGNED = 512
"""Bytes that every part and total begins on a multiple of."""


@dataclass(frozen=True)
class BlockLayout:
    """A block for messages of this format, of which the first `size` numbers are summed there."""

    wire: WireFormat
    size: int

    @property
    def nbytes(self) -> int:
        """Of the whole block."""
        return 3 * self._stride

    @property
    def _stride(self) -> int:
        return -(-self.bytes_of(self.size) // ALIGNED) * ALIGNED

    def bytes_of(self, numbers: int) -> int:
        """How many bytes this many numbers take."""
        return numbers * self.wire.kind.dtype.itemsize

    def part(self, block: Block, begin: int = 0) -> Place:
        """The part, from this number on."""
        return block, self.bytes_of(begin)

    def total(self, block: Block, round: int, begin: int = 0) -> Place:
        """The total of a round, from this number on."""
        return block, (1 + round % 2) * self._stride + self.bytes_of(begin)
