"""The flat state cut into slices: a fixed number of stretches, the same for any number of workers.

    leaves   │ kernel                              │ bias │ embedding …
    blocks   │ 1024 │ 1024 │ 1024 │ 1024 │ 700     │  10  │ 1024 │ …            of the exact mode; none spans two leaves
    slices   │ 0                  │ 1                     │ 2         │ …       each begins where a block does

Slices begin and end where blocks do, so that a holder of a slice has whole blocks of the wire, with their notes, and
whole blocks of every sum of squares (`reduction/norms.py`). They depend on the leaves alone: who holds a slice may
change, and what it is never does.

For an optimizer that looks at whole tensors, they begin and end where leaves do: a large leaf is a slice of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

BLOCK = 1024
"""Numbers of one leaf that form a block, as in `reduction/exact.py`."""
SLICES = 1024
"""How many slices a large state has. So many are spread evenly by chance alone: with 4 workers and one buddy the
largest share is 0.51 of the state, with 8 it is 0.29."""
FEWEST, LEAST = 64, 16 * BLOCK
"""Of a smaller state, slices have so many numbers at least, unless there would be too few: each costs some time."""


def how_many(size: int) -> int:
    """How many slices a state of so many numbers has, unless it has fewer blocks."""
    return max(FEWEST, min(SLICES, size // LEAST))


@dataclass(frozen=True)
class Slicing:
    """Where each slice of a state begins."""

    bounds: tuple[int, ...]
    """In numbers of the flat state; the last one is its end."""
    blocks: tuple[int, ...]
    """The same in blocks."""

    @property
    def count(self) -> int:
        """How many slices there are."""
        return len(self.bounds) - 1

    def numbers(self, which: int) -> slice:
        """The stretch of the flat state that is a slice."""
        return slice(self.bounds[which], self.bounds[which + 1])

    def in_blocks(self, which: int) -> slice:
        """Its blocks."""
        return slice(self.blocks[which], self.blocks[which + 1])


def cut(leaves: Sequence[int], slices: int = SLICES, block: int = BLOCK) -> Slicing:
    """Cut a state whose leaves have these sizes into so many slices, or fewer where it has fewer blocks.

    Each cut is at the first border of a block at or after its even share, so two slices differ by less than two blocks.
    """
    if slices < 1 or block < 1 or min(leaves, default=0) < 0:
        raise ValueError(f"{slices} slices, block {block} and leaves {list(leaves)}: sizes must not be negative or 0")
    ends = list(accumulate(leaves))
    size = ends[-1] if ends else 0
    counts = [-(-leaf // block) for leaf in leaves]
    before = [0, *accumulate(counts)]
    cuts = {0: 0, size: before[-1]}
    for number in range(1, slices):
        place = -(-number * size // slices)
        leaf = bisect_left(ends, place)  # the one that ends at or after it
        if leaf == len(leaves) or not leaves[leaf]:
            continue
        begin = ends[leaf] - leaves[leaf]
        steps = -(-(place - begin) // block)
        cuts[min(begin + steps * block, ends[leaf])] = before[leaf] + steps
    bounds = sorted(cuts)
    return Slicing(tuple(bounds), tuple(cuts[bound] for bound in bounds))


def cut_between(leaves: Sequence[int], slices: int = SLICES, block: int = BLOCK) -> Slicing:
    """The same with cuts between leaves only: each is at the first end of a leaf at or after its even share."""
    found = cut(leaves, slices, block)
    ends = list(accumulate(leaves))
    before = [0, *accumulate(-(-leaf // block) for leaf in leaves)]
    cuts = {0: 0}
    for bound in found.bounds[1:]:
        leaf = bisect_left(ends, bound)
        cuts[ends[leaf]] = before[leaf + 1]
    bounds = sorted(cuts)
    return Slicing(tuple(bounds), tuple(cuts[bound] for bound in bounds))
