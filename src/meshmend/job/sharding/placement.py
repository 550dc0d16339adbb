"""Who should hold which slice: its owner and its buddies, by rendezvous hashing.

Every pair of a slice and a rank has a score, a hash that all members compute alike. The ranks with the highest scores
hold the slice; the first of them owns it. So who holds what follows from who is there, without a table that could be
lost and without a message. A death moves the dead one's slices and no others: for each of them, the next in line moves
up. A newcomer gets the slices on which it outbids somebody, and nothing else moves.

D. Thaler, C. Ravishankar: Using name-based mappings to increase hit rates. IEEE/ACM Trans. Networking 6(1), 1998.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mixed(number: int) -> int:
    """One of 2**64 numbers to another, each bit depending on every bit: the last step of SplitMix64."""
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & MASK
    return number ^ number >> 31


@lru_cache(maxsize=4096)
def scores(rank: int, slices: int) -> tuple[int, ...]:
    """What a rank bids for each slice: the first numbers of a SplitMix64 generator of its own."""
    own = mixed((rank + 1) * GOLDEN & MASK)
    return tuple(mixed(own + (number + 1) * GOLDEN & MASK) for number in range(slices))


def in_line(slices: int, ranks: Collection[int]) -> tuple[tuple[int, ...], ...]:
    """For each slice, these ranks with the highest bid first."""
    return _in_line(slices, tuple(sorted(ranks)))


@lru_cache(maxsize=8)
def _in_line(slices: int, ranks: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    bids = [scores(rank, slices) for rank in ranks]
    every = zip(*bids, strict=True) if bids else ((),) * slices
    return tuple(tuple(rank for _, rank in sorted(zip(bid, ranks, strict=True), reverse=True)) for bid in every)


def placed(slices: int, ranks: Collection[int], buddies: int) -> tuple[tuple[int, ...], ...]:
    """For each slice, the ranks that should hold it, its owner first; all ranks where they are too few."""
    return tuple(line[: buddies + 1] for line in in_line(slices, ranks))
