"""Who has a copy of which slice of the tables: what every worker concludes alike from the totals that all of them have.

Every total says which ranks took part in it, and which of them joined since their last sum (`reduction/footer.py`). So
no record has to be exchanged: from the placement before a sum and these two facts follows the one after it.

* A rank that took part, and did not just join, has what it had, and what it was to copy before it brought its part.
* What others have had is gone: they are dead, or somebody new has their rank.
* Missing copies are made before the next part, a few per worker; one too many is dropped when all that should have
  one do.

Before the first update nobody needs a copy, because a row follows from the seed, or from a checkpoint.

Buddies are on other hosts than the owner, so that a slice outlives a host. Where a host has few workers, not all of its
buddies can be there: they would have to hold far more than others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from meshmend.job.protocol import Lost
from meshmend.job.sharding.placement import in_line, placed
from meshmend.job.sharding.plan import Fill, Holdings, plan_round

FILLS = 32
"""Slices that a worker copies, and gives, per sum at most."""
MOST_SHARE = 4 / 3
"""Times an even share: so much a worker holds at most so that copies are on different hosts."""
Hosts = Mapping[int, str]
"""By rank, what the workers of one host have in common."""
ALL_HERE: Hosts = MappingProxyType({})


@dataclass(frozen=True)
class Placement:
    """Who has what after a sum."""

    slices: int
    buddies: int
    holders: tuple[tuple[int, ...], ...] | None = None
    """For each slice, the ranks that have a copy; None before the first update."""
    fills: tuple[Fill, ...] = ()
    """Copies that are made before the next parts are brought."""
    most: int = FILLS

    def takers(self, number: int) -> tuple[int, ...]:
        """All ranks that have a copy of a slice when they bring their next part."""
        assert self.holders is not None, "there are copies after the first update"
        return (*self.holders[number], *(fill.target for fill in self.fills if fill.slice == number))

    def held_by(self, rank: int) -> frozenset[int]:
        """The slices that a rank has copies of."""
        return frozenset(number for number, ranks in enumerate(self.holders or ()) if rank in ranks)

    @property
    def single(self) -> int:
        """How many slices one rank alone has a copy of, though they should have more: what an audit wants to know."""
        return sum(len(ranks) == 1 for ranks in self.holders or ()) if self.buddies else 0

    def fills_to(self, rank: int) -> tuple[Fill, ...]:
        """What a rank copies."""
        return tuple(fill for fill in self.fills if fill.target == rank)

    def after(self, members: Collection[int], joined: Collection[int], hosts: Hosts = ALL_HERE) -> Placement:
        """The placement after a sum in which these ranks took part; `Lost` where nobody has a slice any more."""
        if self.holders is None:
            return self
        stay = set(members) - set(joined)
        had: list[set[int]] = [set(ranks) for ranks in self.holders]
        for fill in self.fills:
            had[fill.slice].add(fill.target)
        found = Holdings.of(self.slices, {rank: _of(rank, had) for rank in stay})
        if found.lost:
            more = f" and {len(found.lost) - 1} others" if len(found.lost) > 1 else ""
            raise Lost(f"all workers that held slice {found.lost[0]}{more} of the embedding tables are dead")
        wanted = wanted_by(self.slices, members, self.buddies, hosts)
        settled = plan_round(found, members, self.buddies, 0, wanted).after
        fills = plan_round(settled, members, self.buddies, self.most, wanted).fills
        return replace(self, holders=settled.holders, fills=fills)

    def updated(self, members: Collection[int], hosts: Hosts = ALL_HERE) -> Placement:
        """The placement with which an update is made: with the first one, everybody who should has a copy."""
        if self.holders is not None:
            return self
        return replace(self, holders=wanted_by(self.slices, members, self.buddies, hosts))

    def facts(self) -> dict[str, object]:
        """What a newcomer needs to know."""
        return {"holders": self.holders, "fills": [[fill.slice, fill.source, fill.target] for fill in self.fills]}

    def known(self, facts: dict[str, object]) -> Placement:
        """The placement that another worker has told."""
        holders, fills = facts["holders"], facts["fills"]
        assert isinstance(fills, list), "as `facts` has made it"
        return replace(
            self,
            holders=tuple(tuple(ranks) for ranks in holders) if isinstance(holders, Iterable) else None,
            fills=tuple(Fill(*fill) for fill in fills),
        )


def wanted_by(slices: int, members: Collection[int], buddies: int, hosts: Hosts) -> tuple[tuple[int, ...], ...]:
    """Who should hold each slice: those that bid most, as far as they are on different hosts."""
    if len({hosts.get(rank) for rank in members}) < 2:
        return placed(slices, members, buddies)
    most = MOST_SHARE * slices * min(buddies + 1, len(members)) / len(members)
    held: Counter[int] = Counter()
    found = []
    for line in in_line(slices, members):
        before: Counter[str | None] = Counter()
        turns = {}
        for rank in line:
            turns[rank] = before[hosts.get(rank)]
            before[hosts.get(rank)] += 1
        apart = sorted(line, key=lambda rank: (held[rank] >= most, turns[rank]))  # stable: the highest bid first
        found.append(tuple(apart[: buddies + 1]))
        held.update(found[-1])
    return tuple(found)


def _of(rank: int, had: list[set[int]]) -> frozenset[int]:
    return frozenset(number for number, ranks in enumerate(had) if rank in ranks)
