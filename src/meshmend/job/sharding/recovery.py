"""How the members of a sharded job agree, in a new world or after a failure, and finish a round that was decided.

What `protocol/recovery.py` does holds here too; a round that is done is only had in another way. A member that has met
the others knows that every holder has its totals. So if any member present has met, the round is decided: all holders
make its updates, each from its own totals, and the weights are given out, by buddies where owners are dead. If none
has, then nobody here has changed anything, whatever those that died may have done: the round is done again.

Whoever missed a group that others joined was left out of it, and ends: the others may have decided otherwise since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from meshmend.job.protocol import (
    NEVER,
    Begin,
    Cast,
    Cut,
    Enlist,
    Evicted,
    Failure,
    Gather,
    Lost,
    Payload,
    Revoke,
    Shrink,
)
from meshmend.job.protocol.agreement import CAUSES, claims, hand_over, may_go_on
from meshmend.job.protocol.records import Record
from meshmend.job.protocol.recovery import Group, record_of
from meshmend.job.sharding.copies import check_copies
from meshmend.job.sharding.operations import Compare, Give, Measure, ShardedSteps, Update
from meshmend.job.sharding.placement import placed
from meshmend.job.sharding.plan import FILLS, Holdings
from meshmend.job.sharding.records import Attempt, ShardedRecord, ShardedState


@dataclass(frozen=True)
class Sharding:
    """How a job is sharded; the same on every member."""

    slices: int
    buddies: int
    lanes: int
    wanted: int
    """How many members should be active."""
    fills: int = FILLS
    """Slices that a member receives per round, at most."""
    measures: int = 0
    """How often in a round the optimizer asks for norms of whole tensors."""


@dataclass
class ShardedGroup(Group):
    """The members as of the last recovery, and who holds what since."""

    ranks: tuple[int, ...] = ()
    """Of the active ones."""
    holdings: Holdings = field(default_factory=lambda: Holdings(()))

    def propose(self, active: Sequence[int], records: Sequence[Record]) -> frozenset[int]:
        """These are to take part in rounds; returns their ranks."""
        found = super().propose(active, records)
        self.ranks = tuple(records[position].rank for position in self.active)
        return found


def finish(state: ShardedState, holdings: Holdings, sharding: Sharding, *, behind: bool = True) -> ShardedSteps:
    """The second half of a round that is decided; `behind` says whether this member lacks its weights."""
    number = state.met[0]
    for stage in range(sharding.measures):
        yield Measure(number, stage)
    if state.active:
        yield Update(number, state.held)
    copies: Mapping[int, Mapping[int, int]] = yield Compare(number)
    state.wrong = check_copies(copies, state.rank)
    if state.wrong:
        raise Failure  # the rest of the round is repeated without them
    # At the end of a job nobody may be left who holds a slice, or needs it: then there is nothing to take.
    yield Give(number, tuple(holders[0] if holders else state.rank for holders in holdings.holders), take=behind)
    if behind:
        state.done = number


def recover(state: ShardedState, group: ShardedGroup, sharding: Sharding, *, again: bool) -> ShardedSteps:
    """One attempt to agree; `run_sharded_member` repeats it until one succeeds."""
    if again:
        yield Revoke()
        group.position = yield Shrink()
        group.shrink += 1
    else:
        group.position = yield Begin()
    records: list[ShardedRecord] = yield Gather(_record(state, group))
    group.shrink = max(record.shrink for record in records)
    state.wrong = frozenset()
    here = group.position
    active = _active(state, records)
    having, present = {records[p].rank for p in active}, {record.rank for record in records}
    if again and not may_go_on(having, present, group.memberships, group.hosts):
        raise Cut(sorted(present))
    if not active and not any(record.fresh for record in records):
        raise Lost("every worker that had the state is dead")
    state.came = (group.world, group.shrink)
    latest = max((records[position].met for position in active), default=state.met)
    begun = latest[0] != NEVER
    if begun:
        group.holdings = _holdings(sharding, [records[position] for position in active], latest[0])
        if any(records[position].done < latest[0] for position in active):
            behind = here in active and state.done < latest[0]
            if behind:
                assert latest in (state.met, state.totals), "a member has met others that did not have their totals"
            state.met = latest if here in active else state.met
            yield from finish(state, group.holdings, sharding, behind=behind)
    newcomers = [position for position, record in enumerate(records) if not record.active]
    newcomers = newcomers[: max(0, sharding.wanted - len(active))]
    proposed = group.propose(sorted([*active, *newcomers]), records)
    origins = {r.rank: r.origin if r.done == latest[0] and r.active else r.rank for r in records}
    if newcomers:
        source = active[0] if active else newcomers[0]
        if (yield Cast(source, Payload.STATE, take=here in newcomers and here != source)):
            # A script has left the loop between an update and its commit: nobody has a state that others could take.
            newcomers, proposed = [], group.propose(active, records)
        if not any(record.fresh for record in records):
            origins.update({records[position].rank: origins[records[source].rank] for position in newcomers})
        if here in newcomers:
            _become_member(state, latest, origins[state.rank])
            state.leaving = bool(active) and all(records[position].leaving for position in active)
    if not begun and here in group.active:
        # Before the first update, a slice follows from the weights (or from a checkpoint): whoever should has it.
        group.holdings = Holdings(placed(sharding.slices, group.ranks, sharding.buddies))
        state.held = group.holdings.held_by(state.rank)
    held = claims([records[p].lanes if p in active and records[p].done == latest[0] else () for p in group.active])
    more = hand_over(sharding.lanes, held)
    if here in group.active:
        which = group.active.index(here)
        state.assign({*held[which], *more[which]})
    group.fresh = False
    yield Enlist(group.active, group.world, group.shrink)
    state.joined = state.came
    group.memberships = (proposed,)
    group.origins, group.round = origins, latest[0]


def _active(state: ShardedState, records: Sequence[ShardedRecord]) -> list[int]:
    """The positions of those that take part; `Evicted` where this member was left out, or is known to be wrong.

    A group is joined when everyone has come. So who has not come to a group that somebody here has joined was not in
    it: its courier died, the others continued, and all couriers were replaced before its worker was ended.
    """
    newest = max((record.joined for record in records if record.active), default=(0, 0))
    wrong = {rank for record in records for rank in record.wrong}
    if state.active and state.came < newest:
        raise Evicted(f"worker {state.rank} was left out when the others continued")
    if state.active and state.rank in wrong:
        raise Evicted(f"the state of worker {state.rank} differs from that of the other workers{CAUSES}")
    return [
        place
        for place, record in enumerate(records)
        if record.active and record.came >= newest and record.rank not in wrong
    ]


def _holdings(sharding: Sharding, records: Sequence[ShardedRecord], latest: int) -> Holdings:
    """Who holds what, as the active members say; `Lost` where nobody holds a slice that is still needed.

    Those that have brought their last part need none: the others had theirs, and may have left since.
    """
    found = Holdings.of(sharding.slices, {record.rank: record.held for record in records})
    if found.lost and not all(record.leaving and record.done == latest for record in records):
        many = f"slice {found.lost[0]}" + (f" and {len(found.lost) - 1} others" if len(found.lost) > 1 else "")
        raise Lost(f"all workers that held {many} of the optimizer's state are dead")
    return found


def _become_member(state: ShardedState, latest: Attempt, origin: int) -> None:
    state.copied = (latest[0], origin)
    state.done, state.met, state.held = latest[0], latest, frozenset()
    state.active = True


def _record(state: ShardedState, group: ShardedGroup) -> ShardedRecord:
    return ShardedRecord(
        **vars(record_of(state, group)),
        met=state.met,
        held=state.held,
        came=state.came,
        joined=state.joined,
        leaving=state.leaving,
        wrong=state.wrong,
    )
