"""Runs N members of the protocol over the fake ULFM, in one process: seeded, and killing at any point."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from meshmend.job.protocol import (
    NEVER,
    Evicted,
    Failure,
    Lost,
    MemberState,
    Payload,
    Wait,
    Work,
    run_member,
)
from tests.simulators.ulfm import MASK, MIDWAY, Group, Member, Sum, Ulfm, mix


@dataclass
class Worker:
    """A stand-in for training: the state after a round depends on every lane of it, counted once.

    A step has so many sums, each a round. The state changes after each, as PyTorch's objects do; what a lane gives
    depends on how many sums of its step the worker's script has made, and a newcomer's script has made none.
    """

    rounds: int
    sums: int = 1
    summed: int = 0
    """Sums of the step that the script has made."""
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
            self.part[lane] = mix(self.state, round - self.summed, self.summed, lane)
            self.computed += 1

    def apply(self, round: int, payload: int) -> None:
        if round > self.applied:
            assert round == self.applied + 1, "a round is missing"
            self.state, self.applied = mix(self.state, payload), round
            self.summed = (self.summed + 1) % self.sums


@dataclass(eq=False)
class Courier(Member):
    """A member and its worker."""

    worker: Worker = field(default_factory=lambda: Worker(0))
    status: str = "alive"
    total: Sum | None = None
    """Of the last round it completed."""


@dataclass(frozen=True)
class Kill:
    """Member `rank` dies at its operation number `operation`, before or after putting its part in."""

    rank: int
    operation: int
    entered: bool


class Hang(AssertionError):
    """Somebody waits for ever."""


class World(Ulfm):
    """All members, and the clock."""

    def __init__(
        self, members: int, rounds: int, *, seed: int, lanes: int = 7, spares: int = 0, kills: Iterable[Kill] = (),
        reforms: Iterable[int] = (), flips: dict[int, int] | None = None, strays: Iterable[Kill] = (), sums: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(random.Random(seed), lanes)
        self.rounds, self.wanted, self.sums = rounds, members, sums
        self.refused = 0
        """How often a worker within a step was asked for its state."""
        self.kills = {(kill.rank, kill.operation, kill.entered) for kill in kills}
        self.strays = {(kill.rank, kill.operation, kill.entered) for kill in strays}
        """Where only the courier dies: its worker is in the next world, if that comes before it is ended."""
        self.reforms = set(reforms)
        self.flips = dict(flips or {})
        self.disturbed = bool(self.kills or self.reforms or self.flips or self.strays)
        self.begun = False
        self.worlds = 0
        self.ticks = 0
        self.trace: list[Kill] = []
        self.members = []
        for rank in range(members + spares):
            memory = MemberState(rank)
            steps = run_member(memory, lanes, members)
            self.members.append(Courier(memory, steps, Group(0, ()), worker=Worker(rounds, sums)))
        world = self.group(self.members)
        for member in self.members:
            member.world = world
            self.advance(member, None)

    def run(self) -> World:
        while any(m.status == "alive" for m in self.members):
            self.ticks += 1
            if self.ticks in self.reforms:
                self.reform()
            order = [m for m in self.members if m.status == "alive"]
            self.dice.shuffle(order)
            if order and not any(self.progress(member) for member in order):
                waiting = {m.memory.rank: m.operation for m in order}
                raise Hang(f"nobody can continue: {waiting}")
            assert self.ticks < 100_000, "this does not end"
        return self

    def reform(self) -> None:
        """Every courier dies at once and a new world of them comes up under the living workers."""
        done = any(m.status == "ended" and m.memory.active for m in self.members)
        for member in self.members:
            if member.status == "stray":
                member.status = "dead" if done else "alive"
        alive = [m for m in self.members if m.status == "alive"]
        world = self.group(alive)
        self.worlds += 1
        self.begun = self.begun or any(m.memory.active for m in self.members)
        for member in alive:
            member.steps.close()
            member.world, member.active, member.entered = world, None, False
            member.steps = run_member(member.memory, self.lanes, self.wanted, world=self.worlds, fresh=not self.begun)
            self.advance(member, None)

    def advance(self, member: Member, result: Any, failure: Failure | None = None) -> None:
        assert isinstance(member, Courier)
        try:
            member.operation = member.steps.throw(failure) if failure else member.steps.send(result)
            member.entered = False
            member.operations += 1
            self.maybe_kill(member, entered=False)
        except StopIteration:
            member.status = "ended"
        except Evicted:
            member.status = "evicted"
        except Lost:
            here = [m for m in self.members if m in member.world.members]
            assert not any(m.status == "alive" and m.memory.active for m in here), "somebody has the state"
            member.status = "lost"

    def entered(self, member: Member) -> None:
        assert isinstance(member, Courier)
        self.maybe_kill(member, entered=True)

    def maybe_kill(self, member: Courier, *, entered: bool) -> None:
        here = Kill(member.memory.rank, member.operations, entered)
        self.trace.append(here)
        if (here.rank, here.operation, here.entered) in self.kills:
            member.status = "dead"
        elif (here.rank, here.operation, here.entered) in self.strays:
            member.status = "stray"

    def looks_alive(self, member: Member, other: Member) -> bool:
        # Whoever has left may look dead to those that are about to; without any kill it does not.
        assert isinstance(member, Courier) and isinstance(other, Courier)
        return other.status == "alive" or (other.status == "ended" and not self.disturbed)

    def work(self, member: Member, work: Work) -> bool:
        assert isinstance(member, Courier)
        number, worker = work.round.number, member.worker
        assert work.round.lanes == self.lanes
        if self.is_revoked(member, member.world) and self.dice.random() < 0.5:
            return self.fail(member)
        if member.total and member.total.round == number - 1:
            worker.apply(number - 1, member.total.payload)
        if self.flips.get(member.memory.rank) == number:
            del self.flips[member.memory.rank]
            worker.state ^= 4
            worker.part_of = NEVER
        worker.work(number, work.lanes)
        return self.give(member)

    def wait(self, member: Member) -> bool:
        if self.is_revoked(member, member.world):
            return self.fail(member)
        if all(m.status != "alive" or isinstance(m.operation, Wait) for m in self.members):
            return self.give(member)
        return False

    def part(self, member: Member) -> tuple[dict[int, int], int, bool]:
        assert isinstance(member, Courier)
        worker = member.worker
        return dict(worker.part), mix(worker.state, 1), worker.leaving

    def cargo(self, member: Member, what: Payload) -> Any:
        assert isinstance(member, Courier)
        worker = member.worker
        if member.total:
            worker.apply(member.total.round, member.total.payload)
        if what is Payload.STATE and worker.summed:
            self.refused += 1
            return MIDWAY
        return member.total, (worker.state, worker.applied)

    def take(self, member: Member, what: Payload, cargo: Any) -> None:
        assert isinstance(member, Courier)
        total, state = cargo
        if what is Payload.STATE:
            member.worker.state, member.worker.applied = state
            member.worker.summed = 0
        elif member.total and member.total.round == total.round - 1:
            member.worker.apply(member.total.round, member.total.payload)
        member.total = total

    def keep(self, member: Member, total: Sum) -> None:
        assert isinstance(member, Courier)
        member.total = total


def undisturbed(rounds: int, lanes: int = 7, sums: int = 1) -> int:
    worker = Worker(rounds, sums)
    for number in range(rounds):
        worker.work(number, range(lanes))
        worker.apply(number, sum(worker.part.values()) & MASK)
    return worker.state
