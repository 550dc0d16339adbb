"""What each member does in a round, by who holds what: every member makes the same plan from the same facts.

`Holdings` are facts: who has a copy. Who should have one is `placement.py`'s, and the plan of each round brings the two
closer: those that should hold a slice and do not are filled, a few slices per member and round, while the workers
compute. Whoever has been filled takes the slice's total in that very round. A copy that nobody needs any more is
dropped when all that should hold the slice do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from meshmend.job.sharding.placement import in_line

FILLS = 8
"""Slices that a member receives, and gives, per round, so that filling hides behind the work of the round."""


@dataclass(frozen=True)
class Holdings:
    """Who has a copy of each slice: the highest bidder first, who owns it and gives its weights out."""

    holders: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, slices: int, held: Mapping[int, Collection[int]]) -> Holdings:
        """From the slices that each rank holds."""
        return cls(
            tuple(
                tuple(rank for rank in line if number in held[rank])
                for number, line in enumerate(in_line(slices, held.keys()))
            )
        )

    def held_by(self, rank: int) -> frozenset[int]:
        """The slices that a rank holds."""
        return frozenset(number for number, ranks in enumerate(self.holders) if rank in ranks)

    @property
    def lost(self) -> tuple[int, ...]:
        """The slices that nobody holds."""
        return tuple(number for number, ranks in enumerate(self.holders) if not ranks)

    def with_fewer(self, copies: int) -> int:
        """How many slices have fewer copies than this: what an audit wants to know."""
        return sum(len(ranks) < copies for ranks in self.holders)


@dataclass(frozen=True, order=True)
class Fill:
    """One member copies a slice to another."""

    slice: int
    source: int
    target: int
    """Ranks."""


@dataclass(frozen=True)
class RoundPlan:
    """Who does what in one round."""

    fills: tuple[Fill, ...]
    """While the workers compute."""
    takers: Holdings
    """Who takes a slice's total and makes its update: holders, and those filled. The first gives the weights out."""
    after: Holdings
    """Who holds what when the round is done."""

    @property
    def steady(self) -> bool:
        """Whether the next round has the same plan, as long as the members are the same."""
        return not self.fills and self.takers == self.after

    def fills_to(self, rank: int) -> tuple[Fill, ...]:
        """What a rank receives."""
        return tuple(fill for fill in self.fills if fill.target == rank)


def plan_round(
    holdings: Holdings, ranks: Collection[int], buddies: int, most: int = FILLS,
    wanted: Sequence[tuple[int, ...]] | None = None,
) -> RoundPlan:  # fmt: skip
    """The plan of a round over these members; each receives at most `most` slices, and gives as many.

    `wanted` is who should hold each slice, if that is not who bids most.
    """
    lines = in_line(len(holdings.holders), ranks)
    wanted = wanted or [line[: buddies + 1] for line in lines]
    fills = _fills(holdings, wanted, most)
    more: dict[int, set[int]] = {}
    for fill in fills:
        more.setdefault(fill.slice, set()).add(fill.target)
    takers, after = [], []
    for number, line in enumerate(lines):
        having = {*holdings.holders[number], *more.get(number, ())}
        takers.append(tuple(rank for rank in line if rank in having))
        after.append(wanted[number] if having.issuperset(wanted[number]) else takers[-1])
    return RoundPlan(fills, Holdings(tuple(takers)), Holdings(tuple(after)))


def _fills(holdings: Holdings, wanted: Iterable[tuple[int, ...]], most: int) -> tuple[Fill, ...]:
    """The most urgent ones first: slices with the fewest copies."""
    missing = [
        (len(ranks), number, target)
        for number, (ranks, best) in enumerate(zip(holdings.holders, wanted, strict=True))
        for target in best
        if target not in ranks
    ]
    given: Counter[int] = Counter()
    received: Counter[int] = Counter()
    found = []
    for _, number, target in sorted(missing):
        sources = [rank for rank in holdings.holders[number] if given[rank] < most]
        if sources and received[target] < most:
            source = min(sources, key=lambda rank: (given[rank], rank))
            given[source] += 1
            received[target] += 1
            found.append(Fill(number, source, target))
    return tuple(found)
