"""Runs N members of the protocol in one process, as MPI may: seeded, and killing at any point.

What MPI may do, and this does: a collective with a dead member fails, but where all parts were in before the death it
may succeed for some and fail for others; a broadcast may reach some; a revoked group fails everything, but what was
complete may still come through; several die at once, or while the others repair; `Shrink` alone is certain.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from meshmend.job.protocol import (  # fmt: skip
    NEVER,
    Begin,
    Cast,
    Enlist,
    Evicted,
    Failure,
    Gather,
    Lost,
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
    run_member,
)

MASK = 2**61 - 1


def mix(*values: int) -> int:
    out = 17
    for value in values:
        out = (out * 1000003 ^ (value + 0x9E3779B9)) & MASK
    return out


@dataclass
class Worker:
    """A stand-in for training: the state after a round depends on every lane of it, counted once."""

    rounds: int
    state: int = 0
    applied: int = NEVER
    """The round whose total is in the state."""
    part: dict[int, int] = field(default_factory=dict)
    part_of: int = NEVER
    computed: int = 0

    @property
    def leaving(self) -> bool:
        return self.applied == self.rounds - 1

    def work(self, round: int, lanes: Iterable[int]) -> None:
        assert self.applied == round - 1, "asked for a round whose state is not there"
        wanted = set() if self.leaving else set(lanes)
        if self.part_of != round or not set(self.part) <= wanted:
            self.part, self.part_of = {}, round
        for lane in sorted(wanted - set(self.part)):
            self.part[lane] = mix(self.state, round, lane)
            self.computed += 1

    def apply(self, round: int, payload: int) -> None:
        if round > self.applied:
            assert round == self.applied + 1, "a round is missing"
            self.state, self.applied = mix(self.state, payload), round


@dataclass
class Group:
    """A communicator."""

    number: int
    ranks: tuple[int, ...]
    revoked: bool = False
    """Of a world; a group enlisted from it is revoked with it."""
    calls: dict[int, dict[int, Any]] = field(default_factory=dict)
    """For each collective, in order: what each rank has put in."""
    decided: tuple[int, ...] | None = None
    """The survivors that Shrink found."""


@dataclass
class Member:
    memory: MemberState
    worker: Worker
    steps: Steps
    world: Group
    active: Group | None = None
    operation: Operation | None = None
    entered: bool = False
    """Whether it has put its part into the collective it is in."""
    turn: dict[int, int] = field(default_factory=dict)
    operations: int = 0
    status: str = "alive"
    total: tuple[int, Total, int] | None = None
    """(round, total, payload) of the last round it completed."""


@dataclass(frozen=True)
class Kill:
    """Member `rank` dies at its operation number `operation`, before or after putting its part in."""

    rank: int
    operation: int
    entered: bool


class Hang(AssertionError):
    """Somebody waits for ever."""


class World:
    """All members, and the clock."""

    def __init__(
        self, members: int, rounds: int, *, seed: int, lanes: int = 7, spares: int = 0, kills: Iterable[Kill] = (),
        reforms: Iterable[int] = (), flips: dict[int, int] | None = None, strays: Iterable[Kill] = (),
    ) -> None:  # fmt: skip
        self.random = random.Random(seed)
        self.rounds, self.lanes, self.wanted = rounds, lanes, members
        self.kills = {(kill.rank, kill.operation, kill.entered) for kill in kills}
        self.strays = {(kill.rank, kill.operation, kill.entered) for kill in strays}
        """Where only the courier dies: its worker is in the next world, if that comes before it is ended."""
        self.reforms = set(reforms)
        self.flips = dict(flips or {})
        self.disturbed = bool(self.kills or self.reforms or self.flips or self.strays)
        self.begun = False
        self.worlds = 0
        self.groups = 0
        self.ticks = 0
        self.trace: list[Kill] = []
        world = self.group(range(members + spares))
        self.members = []
        for rank in range(members + spares):
            memory = MemberState(rank)
            self.members.append(Member(memory, Worker(rounds), run_member(memory, lanes, members), world))
        for member in self.members:
            self.advance(member, lambda m: next(m.steps))

    def group(self, ranks: Iterable[int]) -> Group:
        self.groups += 1
        return Group(self.groups, tuple(ranks))

    def run(self) -> World:
        while any(m.status == "alive" for m in self.members):
            self.ticks += 1
            if self.ticks in self.reforms:
                self.reform()
            order = [m for m in self.members if m.status == "alive"]
            self.random.shuffle(order)
            if order and not any(self.progress(member) for member in order):
                waiting = {m.memory.rank: m.operation for m in order}
                raise Hang(f"nobody can go on: {waiting}")
            assert self.ticks < 100_000, "this does not end"
        return self

    def reform(self) -> None:
        """Every courier dies at once and a new world of them comes up under the living workers."""
        done = any(m.status == "ended" and m.memory.active for m in self.members)
        for member in self.members:
            if member.status == "stray":
                member.status = "dead" if done else "alive"
        alive = [m for m in self.members if m.status == "alive"]
        world = self.group(m.memory.rank for m in alive)
        self.worlds += 1
        self.begun = self.begun or any(m.memory.active for m in self.members)
        for member in alive:
            member.steps.close()
            member.world, member.active, member.entered = world, None, False
            member.steps = run_member(member.memory, self.lanes, self.wanted, world=self.worlds, fresh=not self.begun)
            self.advance(member, lambda m: next(m.steps))

    def advance(self, member: Member, resume: Callable[[Member], Operation]) -> None:
        try:
            member.operation = resume(member)
            member.entered = False
            member.operations += 1
            self.maybe_kill(member, entered=False)
        except StopIteration:
            member.status = "ended"
        except Evicted:
            member.status = "evicted"
        except Lost:
            here = [self.members[rank] for rank in member.world.ranks]
            assert not any(m.status == "alive" and m.memory.active for m in here), "somebody has the state"
            member.status = "lost"

    def maybe_kill(self, member: Member, *, entered: bool) -> None:
        here = Kill(member.memory.rank, member.operations, entered)
        self.trace.append(here)
        if (here.rank, here.operation, here.entered) in self.kills:
            member.status = "dead"
        elif (here.rank, here.operation, here.entered) in self.strays:
            member.status = "stray"

    def give(self, member: Member, result: Any) -> bool:
        self.advance(member, lambda m: m.steps.send(result))
        return True

    def fail(self, member: Member) -> bool:
        self.advance(member, lambda m: m.steps.throw(Failure()))
        return True

    def gone(self, group: Group) -> list[int]:
        # Whoever has left may look dead to those that are about to; without any kill it does not.
        fine = ("alive",) if self.disturbed else ("alive", "ended")
        return [rank for rank in group.ranks if self.members[rank].status not in fine]

    def progress(self, member: Member) -> bool:
        """One move of one member, if it has any."""
        operation = member.operation
        match operation:
            case Begin():
                return self.give(member, member.world.ranks.index(member.memory.rank))
            case Revoke():
                member.world.revoked = True
                return self.give(member, None)
            case Work(round=current, lanes=lanes):
                number = current.number
                assert current.lanes == self.lanes
                if member.world.revoked and self.random.random() < 0.5:
                    return self.fail(member)
                if member.total and member.total[0] == number - 1:
                    member.worker.apply(number - 1, member.total[2])
                if self.flips.get(member.memory.rank) == number:
                    del self.flips[member.memory.rank]
                    member.worker.state ^= 4
                    member.worker.part_of = NEVER
                member.worker.work(number, lanes)
                return self.give(member, None)
            case Wait():
                if member.world.revoked:
                    return self.fail(member)
                if all(m.status != "alive" or isinstance(m.operation, Wait) for m in self.members):
                    return self.give(member, None)
                return False
            case Shrink():
                return self.shrink(member)
        return self.collective(member)

    def shrink(self, member: Member) -> bool:
        group = member.world
        if group.decided is None:
            if not member.entered:
                member.entered = True
                self.maybe_kill(member, entered=True)
                return True
            alive = [rank for rank in group.ranks if self.members[rank].status == "alive"]
            ready = [
                s for s in alive if self.members[s].world is group and isinstance(self.members[s].operation, Shrink)
            ]
            if ready != alive or not all(self.members[s].entered for s in alive) or not alive:
                return False
            group.decided = tuple(alive)
            group.calls[NEVER] = {NEVER: self.group(alive)}
        member.world, member.active = group.calls[NEVER][NEVER], None
        return self.give(member, group.decided.index(member.memory.rank))

    def collective(self, member: Member) -> bool:
        operation, rank = member.operation, member.memory.rank
        group = member.active if isinstance(operation, Reduce) else member.world
        assert group is not None
        turn = member.turn.setdefault(group.number, 0)
        inputs = group.calls.setdefault(turn, {})
        if not member.entered:
            if member.world.revoked:
                return self.fail(member)
            inputs[rank] = self.put_in(member)
            member.entered = True
            self.maybe_kill(member, entered=True)
            return True
        whole = len(inputs) == len(group.ranks)
        source = group.ranks[operation.source] if isinstance(operation, Cast) else None
        possible = whole or (source is not None and source in inputs)
        broken = member.world.revoked or bool(self.gone(group))
        if broken and (not possible or self.random.random() < 0.5):
            return self.fail(member)
        if not possible:
            return False
        member.turn[group.number] += 1
        return self.give(member, self.take_out(member, group, inputs, source))

    def put_in(self, member: Member) -> Any:
        operation, worker = member.operation, member.worker
        if isinstance(operation, Gather):
            return operation.record
        if isinstance(operation, Cast):
            if member.total:
                worker.apply(member.total[0], member.total[2])
            return member.total, (worker.state, worker.applied)
        if isinstance(operation, Reduce):
            return dict(worker.part), mix(worker.state, 1), worker.leaving
        return None

    def take_out(self, member: Member, group: Group, inputs: dict[int, Any], source: int | None) -> Any:
        operation = member.operation
        if isinstance(operation, Gather):
            records = [inputs[rank] for rank in group.ranks]
            assert len({(record.world, record.shrink) for record in records}) == 1, "members of one group count alike"
            return records
        if isinstance(operation, Cast):
            total, state = inputs[source]  # type: ignore[index]
            if operation.take and operation.what is Payload.TOTAL:
                if member.total and member.total[0] == total[0] - 1:
                    member.worker.apply(member.total[0], member.total[2])
                member.total = total
            elif operation.take:
                member.total = total
                member.worker.state, member.worker.applied = state
            return None
        if isinstance(operation, Enlist):
            assert operation.world == self.worlds
            ranks = tuple(group.ranks[position] for position in operation.active)
            made = group.calls.setdefault(-2, {}).setdefault(0, self.group(ranks))
            member.active = made if member.memory.rank in ranks else None
            return None
        assert isinstance(operation, Reduce)
        counts = [sum(lane in part for part, _, _ in inputs.values()) for lane in range(self.lanes)]
        payload = sum(sum(part.values()) for part, _, _ in inputs.values()) & MASK
        digests = {rank: digest for rank, (_, digest, _) in inputs.items()}
        total = Total(counts, digests, sum(leaving for _, _, leaving in inputs.values()))
        if len(set(digests.values())) == 1 and not total.leaving:
            member.total = (operation.round.number, total, payload)
        return total


def undisturbed(rounds: int, lanes: int = 7) -> int:
    worker = Worker(rounds)
    for number in range(rounds):
        worker.work(number, range(lanes))
        worker.apply(number, sum(worker.part.values()) & MASK)
    return worker.state
