"""How members agree, in a new world or after a failure: who is present, how far each one is, and who computes what.

Why nothing is lost: completing round r needs every member's part, so two members are never more than one round apart.
A member that holds the total of the latest round sends it to the members that lack it. Parts are kept until the total
of their round has arrived, and a lane that no survivor is responsible for goes to the survivor with the fewest.

A member whose courier died may have the total of a round that the others then made again, from the same lanes in other
hands. If a new world takes its worker in before the launcher knows, two totals of one round would be recorded. So
records say which group made a member's last total, and in which group it was last: a member that was in no group as
late as the one that made the latest total was left out of it, and ends.

Newcomers join between two steps. A step may have several sums, each a round, and only a worker's script knows with its
next call whether the last round ended a step. So a member is asked for its state; if its worker turns out to be within
a step, the others continue without the newcomers, and all agree again after the next round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from meshmend.job.protocol.agreement import claims, hand_over, may_go_on
from meshmend.job.protocol.operations import Begin, Cast, Enlist, Gather, Payload, Revoke, Shrink, Steps
from meshmend.job.protocol.records import Cut, Evicted, Lost, MemberState, Record
from meshmend.job.protocol.rounds import NEVER


@dataclass
class Group:
    """The members as of the last recovery, as one of them sees it."""

    attempt: int = 0
    """Which attempt of the run this is."""
    world: int = 0
    """Which world of couriers this is."""
    shrink: int = 0
    """How often this world has shrunk. Every survivor takes part in each `Shrink`, so all count the same."""
    position: int = 0
    """This member's, among all that are here."""
    active: tuple[int, ...] = ()
    """The positions of the members that take part in rounds."""
    fresh: bool = True
    """No round can have been completed: this member has not yet taken part in an `Enlist`, which needs everyone."""
    memberships: tuple[frozenset[int], ...] = ()
    """Every set of ranks that some member may take for the active ones: the last that all know, and those proposed
    since. The other half of a broken network counts by one of them."""
    hosts: Sequence[Sequence[int]] = ()
    """Which ranks share a host; if empty, all do."""
    origins: Mapping[int, int] = field(default_factory=dict)
    """Whose state each active rank had as of the last `Enlist`."""
    round: int = NEVER
    """The latest round then."""
    midway: bool = False
    """Whether newcomers wait for the end of the step."""

    def propose(self, active: Sequence[int], records: Sequence[Record]) -> frozenset[int]:
        """These are to take part in rounds; returns their ranks.

        Members that do not receive all records never hear of it: until all are known to have, earlier ones count too.
        """
        self.active, ranks = tuple(active), frozenset(records[position].rank for position in active)
        self.memberships += (ranks,)
        return ranks


def recover(state: MemberState, group: Group, lanes: int, wanted: int, *, again: bool) -> Steps:
    """One attempt to agree; `run_member` repeats it until one succeeds."""
    if again:
        yield Revoke()
        group.position = yield Shrink()
        group.shrink += 1
    else:
        group.position = yield Begin()
    records: list[Record] = yield Gather(record_of(state, group))
    # A member may have repeated a shrink that the others saw succeed: all count the most that any one counted.
    group.shrink = max(record.shrink for record in records)
    here = group.position
    active = [position for position, record in enumerate(records) if record.active]
    present = {record.rank for record in records}
    having = {records[position].rank for position in active}
    if again and not may_go_on(having, present, group.memberships, group.hosts):
        raise Cut(sorted(present))
    if not active and not any(record.fresh for record in records):
        raise Lost("every worker that had the state is dead")
    latest = max((records[position].done for position in active), default=NEVER)
    if state.active and state.done < latest - 1:
        # Its courier died, the others continued without it, and all couriers were replaced before it was killed.
        raise Evicted(f"worker {state.rank} is {latest - state.done} rounds behind the others")
    newest = max((records[position].made_by for position in active if records[position].done == latest), default=(0, 0))
    if state.active and state.group < newest:
        # Its courier died when it may have had another total of the same round, which the others then made again.
        raise Evicted(f"worker {state.rank} was left out when the others summed last")
    active = [one for one in active if records[one].done >= latest - 1 and records[one].group >= newest]
    holders = [position for position in active if records[position].done == latest]
    behind = [position for position in active if records[position].done < latest]
    if behind:
        # Two members are never more than one round apart, so the total of the latest round is all that is missing.
        yield Cast(holders[0], Payload.TOTAL, take=here in behind)
        if here in behind:
            state.complete(latest, newest)
    idle = [position for position, record in enumerate(records) if not record.active]
    newcomers = idle[: max(0, wanted - len(active))]
    proposed = group.propose(sorted(active + newcomers), records)
    origins = {r.rank: r.origin if r.done == latest and r.active else r.rank for r in records}
    group.midway = False
    if newcomers:
        source = holders[0] if holders else newcomers[0]
        group.midway = bool((yield Cast(source, Payload.STATE, take=here in newcomers and here != source)))
    if group.midway:
        newcomers, proposed = [], group.propose(active, records)
    elif newcomers:
        if not any(record.fresh for record in records):  # where a job begins, no state can have been corrupted yet
            origins.update({records[position].rank: origins[records[source].rank] for position in newcomers})
        if here in newcomers:
            state.copied = (latest, origins[state.rank])
            state.complete(latest, newest)
            state.group, state.active = newest, True
    held = claims([records[position].lanes if position in holders else () for position in group.active])
    more = hand_over(lanes, held)
    if here in group.active:
        which = group.active.index(here)
        state.assign({*held[which], *more[which]})
    group.fresh = False
    yield Enlist(group.active, group.world, group.shrink)
    if here in group.active:
        state.group = group.world, group.shrink
    group.memberships = (proposed,)  # all members have come this far, so none counts by an earlier one any more
    group.origins, group.round = origins, latest


def record_of(state: MemberState, group: Group) -> Record:
    """Return what this member sends the others."""
    return Record(
        rank=state.rank,
        done=state.done,
        active=state.active,
        lanes=state.lanes,
        fresh=group.fresh,
        origin=state.origin,
        attempt=group.attempt,
        world=group.world,
        shrink=group.shrink,
        made_by=state.made_by,
        group=state.group,
    )
