"""A fake ULFM: carries out the operations of the protocol's members as MPI may, and as unkindly as it may.

A collective with a dead member fails, but where all parts were in before the death it may succeed for some and fail for
others. A broadcast may reach some. A revoked group fails everything, but what was complete may still come through.
Several die at once, or while the others repair. A network may fall apart, and each side takes the other for dead sooner
or later. `Shrink` alone is certain.

`mpi.py` drives members in ticks, without anything around them; `supervisor.py` drives them as couriers of a whole run.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from meshmend.job.protocol import (
    Begin,
    Cast,
    Enlist,
    Failure,
    Gather,
    MemberState,
    Operation,
    Payload,
    Reduce,
    Revoke,
    Shrink,
    Steps,
    Total,
    Wait,
    Work,
)

MASK = 2**61 - 1
MIDWAY = "midway"
"""What a worker within a step says when it is asked for its state."""


def mix(*values: int) -> int:
    """A hash: the state after a step depends on every lane of it, counted once."""
    out = 17
    for value in values:
        out = (out * 1000003 ^ (value + 0x9E3779B9)) & MASK
    return out


@dataclass(frozen=True)
class Sum:
    """What a round gives to everyone."""

    round: int
    total: Total
    payload: int
    key: tuple[int, int]
    """Which collective made it: two totals of one round are two different sums, though their bits may be equal."""


@dataclass(eq=False)
class Group:
    """A communicator."""

    number: int
    members: tuple[Member, ...]
    revoked: set[Member] = field(default_factory=set)
    """Those that know; a group enlisted from this one is revoked with it."""
    revokers: list[Member] = field(default_factory=list)
    calls: dict[int, dict[Member, Any]] = field(default_factory=dict)
    """For each collective, in order: what each member has put in."""
    sums: dict[int, Sum] = field(default_factory=dict)
    shrunk: dict[tuple[Member, ...], Group] = field(default_factory=dict)
    """The groups of survivors that `Shrink` found: one, or one on each side of a broken network."""
    enlisted: dict[tuple[int, ...], Group] = field(default_factory=dict)


@dataclass(eq=False)
class Member:
    """One member of the protocol, in the hands of this MPI."""

    memory: MemberState
    steps: Steps
    world: Group
    active: Group | None = None
    operation: Operation | None = None
    entered: bool = False
    """Whether it has put its part into the collective it is in."""
    turn: dict[int, int] = field(default_factory=dict)
    operations: int = 0


class Ulfm:
    """Carries out operations. What is around a member (its worker, its process) is the subclass's."""

    def __init__(self, dice: random.Random, lanes: int) -> None:
        self.dice, self.lanes = dice, lanes
        self.groups = 0

    # ── what is around a member ──

    def advance(self, member: Member, result: Any, failure: Failure | None = None) -> None:
        """Give a member the result of its operation, or throw the failure; it has its next one then."""
        raise NotImplementedError

    def entered(self, member: Member) -> None:
        """A member has put its part in."""

    def looks_alive(self, member: Member, other: Member) -> bool:
        """Whether another member looks alive to this one."""
        raise NotImplementedError

    def reaches(self, member: Member, other: Member) -> bool:
        """Whether messages between the two arrive."""
        del member, other
        return True

    def work(self, member: Member, work: Work) -> bool:
        """Have the worker produce its part."""
        raise NotImplementedError

    def wait(self, member: Member) -> bool:
        """A spare waits."""
        raise NotImplementedError

    def part(self, member: Member) -> tuple[dict[int, int], int, bool, bool]:
        """The worker's part by lane, the digest of its state, whether it leaves, and whether it brings a note."""
        raise NotImplementedError

    def cargo(self, member: Member, what: Payload) -> Any:
        """What a member sends in a `Cast`; None: the worker has not put it down yet; `MIDWAY`: it has nothing now."""
        raise NotImplementedError

    def take(self, member: Member, what: Payload, cargo: Any) -> None:
        """Keep what came in a `Cast`."""
        raise NotImplementedError

    def keep(self, member: Member, total: Sum) -> None:
        """Keep the total of a round."""
        raise NotImplementedError

    # ── MPI ──

    def group(self, members: Iterable[Member]) -> Group:
        """A new communicator."""
        self.groups += 1
        return Group(self.groups, tuple(members))

    def is_revoked(self, member: Member, group: Group) -> bool:
        """Whether a member knows that a group is revoked."""
        if member in group.revoked:
            return True
        if any(self.reaches(member, other) for other in group.revokers):
            group.revoked.add(member)
            return True
        return False

    def is_broken(self, member: Member, group: Group) -> bool:
        """Whether a member knows of a dead one."""
        return not all(other is member or self.looks_alive(member, other) for other in group.members)

    def give(self, member: Member, result: Any = None) -> bool:
        """The operation is through."""
        self.advance(member, result)
        return True

    def fail(self, member: Member) -> bool:
        """The operation failed here."""
        self.advance(member, None, Failure())
        return True

    def progress(self, member: Member) -> bool:
        """One move of one member, if it has any."""
        match member.operation:
            case Begin():
                return self.give(member, member.world.members.index(member))
            case Revoke():
                member.world.revokers.append(member)
                member.world.revoked.add(member)
                return self.give(member)
            case Work() as work:
                return self.work(member, work)
            case Wait():
                return self.wait(member)
            case Shrink():
                return self.shrink(member)
        return self.collective(member)

    def shrink(self, member: Member) -> bool:
        """All survivors of a side must take part."""
        group = member.world
        if not member.entered:
            member.entered = True
            self.entered(member)
            return True
        alive = next((found for found in group.shrunk if member in found), None)
        if alive is None:
            alive = self.survivors(member, group)
            for other in alive:
                if other.world is not group or not isinstance(other.operation, Shrink) or not other.entered:
                    return False
                if self.survivors(other, group) != alive:
                    return False
            group.shrunk[alive] = self.group(alive)
        member.world, member.active = group.shrunk[alive], None
        return self.give(member, alive.index(member))

    def survivors(self, member: Member, group: Group) -> tuple[Member, ...]:
        """Those that look alive to a member."""
        return tuple(other for other in group.members if other is member or self.looks_alive(member, other))

    def collective(self, member: Member) -> bool:
        """Put the part in, and take the result out when it is there."""
        operation = member.operation
        group = self.group_of(member)
        turn = member.turn.setdefault(group.number, 0)
        inputs = group.calls.setdefault(turn, {})
        revoked = self.is_revoked(member, member.world)
        if not member.entered:
            if revoked:
                return self.fail(member)
            own = self.put_in(member, group)
            if own is None:
                return False
            inputs[member] = own
            member.entered = True
            self.entered(member)
            return True
        source = group.members[operation.source] if isinstance(operation, Cast) else None
        needed = (source,) if source is not None else group.members
        possible = all(other in inputs for other in needed)
        if possible and not all(self.reaches(member, other) for other in needed):
            possible = self.dice.random() < 0.2  # it had come through before the network broke
        broken = revoked or self.is_broken(member, group)
        if broken and (not possible or self.dice.random() < 0.5):
            return self.fail(member)
        if not possible:
            return False
        member.turn[group.number] += 1
        return self.give(member, self.take_out(member, group, turn, inputs))

    def group_of(self, member: Member) -> Group:
        """The group of the collective that a member is in."""
        group = member.active if isinstance(member.operation, Reduce) else member.world
        assert group is not None
        return group

    def put_in(self, member: Member, group: Group) -> Any:
        """What a member brings; None: it is not ready."""
        match member.operation:
            case Gather(record=record):
                return record
            case Cast(source=source, what=what) if group.members[source] is member:
                return self.cargo(member, what)
            case Reduce():
                return self.part(member)
        return True

    def take_out(self, member: Member, group: Group, turn: int, inputs: dict[Member, Any]) -> Any:
        """What a member gets."""
        match member.operation:
            case Gather():
                records = [inputs[other] for other in group.members]
                assert len({(record.world, record.shrink) for record in records}) == 1, "members count worlds alike"
                return records
            case Cast(source=source, what=what, take=take):
                cargo = inputs[group.members[source]]
                if cargo is MIDWAY:
                    return True
                if take:
                    self.take(member, what, cargo)
                return False
            case Enlist(active=active):
                if active not in group.enlisted:
                    group.enlisted[active] = self.group(group.members[place] for place in active)
                made = group.enlisted[active]
                member.active = made if member in made.members else None
                return None
            case Reduce(round=current):
                if turn not in group.sums:
                    group.sums[turn] = self.add(current.number, inputs, (group.number, turn))
                found = group.sums[turn]
                if len(set(found.total.digests.values())) == 1 and (found.total.noted or not found.total.leaving):
                    self.keep(member, found)
                return found.total
        raise AssertionError(member.operation)

    def add(self, number: int, inputs: dict[Member, Any], key: tuple[int, int]) -> Sum:
        """The total of all parts."""
        parts = [(member.memory.rank, *inputs[member]) for member in inputs]
        counts = [sum(lane in part for _, part, *_ in parts) for lane in range(self.lanes)]
        by = [next((rank for rank, part, *_ in parts if lane in part), -1) for lane in range(self.lanes)]
        payload = sum(sum(part.values()) for _, part, *_ in parts) & MASK
        digests = {rank: digest for rank, _, digest, *_ in parts}
        leaving, noted = sum(part[3] for part in parts), sum(any(part[4:]) for part in parts)
        return Sum(number, Total(counts, digests, leaving, by, noted), payload, key)
