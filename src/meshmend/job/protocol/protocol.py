"""What a worker's courier does in every round, and when others die: pure logic, no input or output.

A **round** is one all-reduce over the members of the job. Each member brings its *part*: the sum over the lanes it is
responsible for, how often each lane is counted in it, and a digest of the state it was computed with. All members
get the same *total*. What a total means (a step to commit, a step to do again with a wider number format) is decided
by the worker, alike everywhere, since all totals are alike.

`run_member` is a generator: it yields operations and is sent their results, or `Failure` is thrown into it where MPI
reports one. So the very same code runs under MPI (`courier.py`) and under a seeded simulator that kills at every point.

      ┌──────────────► Work ──► Sum ──► check ──► keep the total ──┐
      │                  │ Failure │                               │
      │                  ▼         ▼                               │
      │      Revoke ─► Shrink ─► Gather records ─► roll forward ─► divide lanes
      └────────────────────────────────────────────────────────────┘

Why nothing is lost: completing round r needs every member's part, so two members are never more than one round apart.
A member that holds the total of the latest round gives it to those that lack it. Parts are kept until their round's
total is there, and a lane that no survivor is responsible for is given to the survivor with the fewest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NEVER = -1
"""The round before the first."""


class Failure(Exception):
    """An operation failed here because a member died or the group was revoked; elsewhere it may have succeeded."""


class Evicted(Exception):
    """The state of this member differs from the majority's: it must end, and the others go on without it."""


class Cut(Exception):
    """Those that are gone may go on without us: whoever sees all hosts must say what is to happen."""


class Lost(Exception):
    """All members that had the state are dead: the others have nothing to go on from."""


class Divergence(Exception):
    """The members' states differ and there is no majority, or a lane was not counted once: nobody can be trusted."""


@dataclass(frozen=True)
class Work:
    """Have the worker bring its part of a round, over these lanes. Result: nothing; the part is ready."""

    round: int
    lanes: tuple[int, ...]


@dataclass(frozen=True)
class Sum:
    """All-reduce the parts of the active members. Result: the `Total`."""

    round: int


@dataclass(frozen=True)
class Wait:
    """A spare sleeps until the group is revoked (`Failure`) or the job is over (result: nothing)."""


@dataclass(frozen=True)
class Revoke:
    """Make every pending and future operation of the group fail, everywhere.

    That includes sums of the group enlisted from it, also where this member never got that group: an executor must
    watch both (found by simulation: a member whose `Enlist` failed could not revoke what it did not have).
    """


@dataclass(frozen=True)
class Begin:
    """Take part in a new world of couriers. Result: this member's place in it."""


@dataclass(frozen=True)
class Shrink:
    """Form the group of those alive; all survivors get the same one. Result: this member's place in it."""


@dataclass(frozen=True)
class Gather:
    """Every member's record, to every member. Result: a list in order of places."""

    record: Record


@dataclass(frozen=True)
class Cast:
    """The member at `source` sends its last total or its state to all. Result: nothing; receivers call `take`."""

    source: int
    what: str
    """"total" or "state"."""
    take: bool
    """Whether this member keeps what comes."""


@dataclass(frozen=True)
class Enlist:
    """Form the group of the active members, for sums. Result: nothing."""

    active: tuple[int, ...]


Operation = Begin | Work | Sum | Wait | Revoke | Shrink | Gather | Cast | Enlist


@dataclass(frozen=True)
class Record:
    """What a member tells the others in recovery."""

    rank: int
    done: int
    """The last round whose total it holds."""
    active: bool
    """Whether it has the state, and so takes part in rounds."""
    lanes: tuple[int, ...]
    """The lanes it is responsible for in the round after `done`."""
    fresh: bool = False
    """Whether it knows that no round can have been done yet."""
    origin: int = -1
    """The rank whose state it has copied since the last round; its own rank, or -1, if it has not."""


@dataclass(frozen=True)
class Total:
    """What all members get from a round, besides the payload."""

    counts: Sequence[int]
    """How often each lane was counted."""
    digests: dict[int, int]
    """The hash of each active rank's state."""
    leaving: int
    """How many members have no more steps to do."""
    by: Sequence[int] = ()
    """Which rank computed each lane, where every lane was counted once."""


@dataclass
class Memory:
    """What must survive the courier: it lies in the memory shared with the worker.

    A courier may be killed between any two writes, so `lanes` carries the round it is for: until `assign` is through,
    the member is responsible for nothing, and recovery gives it lanes anew.
    """

    rank: int
    done: int = NEVER
    active: bool = False
    assigned: tuple[int, tuple[int, ...]] = (NEVER, ())
    copied: tuple[int, int] = (NEVER, -1)
    """(round, rank): whose state after which round this member got."""

    @property
    def lanes(self) -> tuple[int, ...]:
        """The lanes this member is responsible for in the round after `done`."""
        return self.assigned[1] if self.assigned[0] == self.done + 1 else ()

    @property
    def origin(self) -> int:
        """The rank whose state this is a copy of; its own once it has done a round with it."""
        return self.copied[1] if self.copied[0] == self.done and self.copied[1] >= 0 else self.rank

    def assign(self, lanes: Iterable[int]) -> None:
        """Make this member responsible for these lanes of the round after `done`."""
        self.assigned = (self.done + 1, tuple(sorted(lanes)))


@dataclass
class Group:
    """The members as of the last recovery: places of the active ones, and this member's."""

    place: int = 0
    active: tuple[int, ...] = ()
    fresh: bool = True
    """No round can have been done: this member has not yet taken part in an `Enlist`, which needs everyone."""
    agreed: frozenset[int] = frozenset()
    """The ranks of the active members, as of the last `Enlist`."""
    hosts: Sequence[Sequence[int]] = ()
    """Which ranks share a host; without it, all do."""
    origins: Mapping[int, int] = field(default_factory=dict)
    """Whose state each active rank had, as of the last `Enlist`, and after which round that was."""
    round: int = NEVER


Steps = Generator[Operation, Any, None]


def run_member(
    memory: Memory,
    lanes: int,
    wanted: int,
    *,
    fresh: bool = True,
    repair: bool = True,
    hosts: Sequence[Sequence[int]] = (),
) -> Steps:
    """A member in one world of couriers, until the job is over; `wanted` is how many members should be active.

    `fresh` says that the job may begin here: nobody has had its state yet, so the first member's is as good as any.
    Without `repair` a world ends with its first failure, and in the next one everyone computes the round again: the
    way of Reinit, for comparison. `hosts` are the ranks of each host: a host that is gone may only be cut off.
    """
    group = Group(fresh=fresh, agreed=frozenset(rank for ranks in hosts for rank in ranks), hosts=hosts)
    again, joined = False, False
    while True:
        try:
            if not joined:
                if not repair:
                    memory.assigned = (NEVER, ())
                yield from _form(memory, group, lanes, wanted, again)
                joined = True
            if not memory.active:
                yield Wait()
                return
            yield Work(memory.done + 1, memory.lanes)
            total: Total = yield Sum(memory.done + 1)
            verdict = check(total, memory.rank, group.origins if memory.done == group.round else {})
            if verdict == "leave":
                return
            if verdict == "evict":
                raise Failure  # everyone drops this total; the odd member ends itself, and the round is done again
            memory.done += 1
            memory.assign(divide(lanes, len(group.active), group.active.index(group.place)))
        except Failure:
            if not repair:
                raise
            again, joined = True, False


def _form(memory: Memory, group: Group, lanes: int, wanted: int, again: bool) -> Steps:
    """Agree on who is there, how far everyone is, and who does what: repeated until it passes."""
    if again:
        yield Revoke()
        group.place = yield Shrink()
    else:
        group.place = yield Begin()
    record = Record(memory.rank, memory.done, memory.active, memory.lanes, group.fresh, memory.origin)
    records: list[Record] = yield Gather(record)
    here = group.place
    active = [place for place, record in enumerate(records) if record.active]
    here_still = {record.rank for record in records}
    if again and not may_go_on({records[place].rank for place in active}, here_still, group.agreed, group.hosts):
        raise Cut(f"workers {sorted(here_still)} may have been cut off from the others")
    if not active and not any(record.fresh for record in records):
        raise Lost("all workers that had the state are dead")
    latest = max((records[place].done for place in active), default=NEVER)
    if memory.active and memory.done < latest - 1:
        # Its courier died, the others went on without it, and then all couriers were replaced before it was ended.
        raise Evicted(f"worker {memory.rank} is {latest - memory.done} rounds behind the others")
    active = [place for place in active if records[place].done >= latest - 1]
    holders = [place for place in active if records[place].done == latest]
    behind = [place for place in active if records[place].done < latest]
    if behind:
        # Two members are never more than one round apart, so the total of the latest round is all that is missing.
        yield Cast(holders[0], "total", take=here in behind)
        if here in behind:
            memory.done = latest
    idle = [place for place, record in enumerate(records) if not record.active]
    newcomers = idle[: max(0, wanted - len(active))]
    origins = {r.rank: r.origin if r.done == latest and r.active else r.rank for r in records}
    if newcomers:
        source = holders[0] if holders else newcomers[0]
        if not any(record.fresh for record in records):  # where a job begins, there was nothing that could go wrong
            origins.update({records[place].rank: origins[records[source].rank] for place in newcomers})
        yield Cast(source, "state", take=here in newcomers and here != source)
        if here in newcomers:
            memory.copied = (latest, origins[memory.rank])
            memory.done, memory.active = latest, True
    group.active = tuple(sorted(active + newcomers))
    held = claims([records[place].lanes if place in holders else () for place in group.active])
    more = hand_over(lanes, held)
    if here in group.active:
        which = group.active.index(here)
        memory.assign({*held[which], *more[which]})
    group.fresh = False
    yield Enlist(group.active)
    group.agreed = frozenset(records[place].rank for place in group.active)
    group.origins, group.round = origins, latest


def may_go_on(active: set[int], left: set[int], agreed: Collection[int], hosts: Sequence[Collection[int]]) -> bool:
    """Whether these active ones of those left may go on: they are most of the members that are not known to be dead.

    Of two halves of a broken network, one at most may. A host breaks down whole or not at all, so a member that is gone
    from a host where others are left is dead; one of a host where nobody is left may live on behind the break.
    """
    seen = {rank for host in hosts if left & set(host) for rank in host}
    unsure = set(agreed) - left - seen
    return not hosts or not unsure or has_majority(active, active | unsure)


def has_majority(left: set[int], members: set[int]) -> bool:
    """Whether these are most of the members; of two equal halves, the one with the first member is."""
    return 2 * len(left) > len(members) or (2 * len(left) == len(members) and min(members, default=0) in left)


def check(total: Total, rank: int, origins: Mapping[int, int] | None = None) -> str:
    """What a total says: "commit", "leave" (all have ended), or "evict" (some states are wrong)."""
    if len(set(total.digests.values())) > 1:
        if total.digests[rank] != right_digest(total.digests, origins or {}):
            raise Evicted(f"the state of worker {rank} differs from that of the others")
        return "evict"
    if total.leaving:
        if total.leaving != len(total.digests) or any(total.counts):
            raise Divergence(f"{total.leaving} of {len(total.digests)} workers ended while others went on")
        return "leave"
    wrong = [lane for lane, count in enumerate(total.counts) if count != 1]
    if wrong:
        raise Divergence(f"lane {wrong[0]} was counted {total.counts[wrong[0]]} times instead of once")
    return "commit"


def right_digest(digests: Mapping[int, int], origins: Mapping[int, int]) -> int:
    """The digest of the right state, where they differ: the only one that a single fault explains, or the majority's.

    One fault makes one member's state wrong; or, where others have copied it since, theirs as well. Counting alone
    would make a wrong state right for having been copied (`origins`: whose state each has).
    """
    families: dict[int, set[int]] = {}
    for rank in digests:
        families.setdefault(origins.get(rank, rank), set()).add(rank)
    explained = []
    for truth in set(digests.values()):
        wrong = {rank for rank, digest in digests.items() if digest != truth}
        alike = len({digests[rank] for rank in wrong}) == 1
        if len(wrong) == 1 or (alike and wrong in families.values()):
            explained.append(truth)
    if len(explained) == 1:
        return explained[0]
    (majority, most), (_, second) = Counter(digests.values()).most_common(2)
    if most == second:
        raise Divergence(f"the states of the workers differ and none is in the majority: {dict(digests)}")
    return majority


def divide(lanes: int, members: int, which: int) -> tuple[int, ...]:
    """The lanes of one member when all are divided evenly: neighbours stay together."""
    return tuple(range(which * lanes // members, (which + 1) * lanes // members))


def claims(held: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Who keeps which lanes: one that two hold (the first one's courier had been lost for a while) is the first's."""
    taken: set[int] = set()
    kept = []
    for own in held:
        kept.append(tuple(lane for lane in own if lane not in taken))
        taken.update(own)
    return kept


def hand_over(lanes: int, held: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Lanes that nobody is responsible for, one by one to the member with the fewest (the first of those)."""
    load = [len(own) for own in held]
    more: list[list[int]] = [[] for _ in held]
    for lane in sorted(set(range(lanes)) - {lane for own in held for lane in own}):
        which = min(range(len(held)), key=lambda i: (load[i], i))
        more[which].append(lane)
        load[which] += 1
    return [tuple(own) for own in more]
