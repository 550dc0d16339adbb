"""Runs members of the sharded protocol over the fake ULFM: killing at any point, with every outcome that MPI allows.

Members read each other's memory as it is when they get to it, which is as unkind as a transport can be: a part that was
dropped too early, or a slice that was updated too early, is found that way.

What is left open by a failure (which members saw a collective succeed that all had entered) is asked of the dice. Here
these are `Choices`, which `explore` goes through one by one, so that no outcome is left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshmend.job.protocol import NEVER, Evicted, Failure, Lost, Payload, Total, Wait
from meshmend.job.sharding.member import run_sharded_member
from meshmend.job.sharding.operations import Compare, Give, Measure, Meet, Prepare, Scatter, ShardedSteps, Update
from meshmend.job.sharding.records import ShardedState
from meshmend.job.sharding.recovery import Sharding
from tests.simulators.mpi import Hang, Kill
from tests.simulators.recorded import Disk
from tests.simulators.ulfm import MASK, Group, Member, Ulfm, mix

Run = Callable[..., ShardedSteps]


class Violation(AssertionError):
    """What must never happen."""


class Choices(random.Random):
    """Coins that fall as they are told to, and then tails: what a run has made of them is in `taken`."""

    def __init__(self, told: Sequence[int] = ()) -> None:
        super().__init__(0)
        self.told, self.taken = told, []

    def random(self) -> float:
        self.taken.append(self.told[len(self.taken)] if len(self.taken) < len(self.told) else 0)
        return 0.9 if self.taken[-1] else 0.1

    def next(self) -> list[int] | None:
        """What to tell the next ones, so that all are had; None after the last."""
        told = list(self.taken)
        while told and told[-1]:
            told.pop()
        return [*told[:-1], 1] if told else None


@dataclass
class Worker:
    """A stand-in for training: the weights after a round depend on every lane of it and on the optimizer's state."""

    sharding: Sharding
    rounds: int
    rank: int
    loose: bool = False
    """Whether sums depend on who computed what, as those of floating-point numbers do."""
    weights: list[int] = field(default_factory=list)
    moments: dict[int, int] = field(default_factory=dict)
    version: dict[int, int] = field(default_factory=dict)
    """Of the copies: the round after which they are."""
    agreed: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The digests that the holders of each slice agreed on: of its weights, and of the optimizer's state."""
    part: dict[int, list[int]] = field(default_factory=dict)
    part_of: int = NEVER
    footer: int = 0
    """The digest of the weights that it was computed with."""
    totals: dict[int, int] = field(default_factory=dict)
    computed: int = 0
    said: dict[int, dict[int, int]] = field(default_factory=dict)
    """What it said of its slices at each stage of the last round that was measured."""
    said_of: int = NEVER
    norms: dict[int, int] = field(default_factory=dict)
    """What came of it, by stage."""
    flip: tuple[str, int] | None = None
    """What goes wrong in which round: in the "update" of a slice, in a copy at "rest", or in the "weights"."""

    def __post_init__(self) -> None:
        self.weights = [mix(number) for number in range(self.sharding.slices)]

    def work(self, round: int, lanes: Iterable[int], *, leaving: bool) -> None:
        if self._strikes("weights", round):
            self.weights[0] ^= 4
            self.part_of = NEVER
        if self.moments and self._strikes("rest", round):
            self.moments[min(self.moments)] ^= 4
        wanted = set() if leaving else set(lanes)
        if self.part_of != round or not set(self.part) <= wanted:
            self.part, self.part_of = {}, round
        state = self.footer = mix(*self.weights)
        for lane in sorted(wanted - set(self.part)):
            noise = self.rank if self.loose else 0
            self.part[lane] = [mix(state, round, lane, number, noise) for number in range(self.sharding.slices)]
            self.computed += 1

    def added(self) -> None:
        """Its totals are there; its part stays, since others may not have theirs."""

    def judge(self, round: int) -> None:
        """A round is decided."""

    def measure(self, round: int, stage: int, slices: Iterable[int]) -> dict[int, int]:
        """What the norms depend on; who has said it says the same again, as it may have updated its slices since."""
        if self.said_of != round:
            self.said, self.said_of = {}, round
        if stage not in self.said:
            self.check(slices)
            before = self.norms[stage - 1] if stage else 0
            self.said[stage] = {
                number: mix(self.totals[number], self.moments.get(number, 0), before, stage) for number in slices
            }
        return self.said[stage]

    def measured(self, stage: int, found: dict[int, int]) -> None:
        """All have said it."""
        if len(found) != self.sharding.slices:
            raise Violation(f"the norms of stage {stage} lack slices: only {sorted(found)} were measured")
        self.norms[stage] = mix(*(found[number] for number in sorted(found)))

    def check(self, slices: Iterable[int]) -> None:
        """A copy must be as it was."""
        for number in slices:
            if self.agreed.get(number, self.digest(number)) != self.digest(number):
                raise Evicted("a bit flipped")

    def update(self, round: int, number: int) -> None:
        """Once in a round; before it, the copy must be as it was."""
        self.check([number])
        if self.version.setdefault(number, NEVER) == round:
            return
        if self.version[number] != round - 1:
            raise Violation(f"slice {number} of worker {self.rank} is of round {self.version[number]}, not {round - 1}")
        self.moments.setdefault(number, 0)
        self.agreed.pop(number, None)
        self.apply(number)
        if self._strikes("update", round):
            self.moments[number] ^= 4
        self.version[number] = round

    def apply(self, number: int) -> None:
        norms = [self.norms[stage] for stage in range(self.sharding.measures)]
        self.moments[number] = mix(self.moments[number], self.totals[number], *norms)
        self.weights[number] = mix(self.weights[number], self.moments[number])

    def digest(self, number: int) -> tuple[int, int]:
        return mix(self.weights[number]), mix(self.moments.get(number, 0))

    def scatter(self, round: int, members: Sequence[Worker], slices: Iterable[int]) -> list[int]:
        """Add up parts as they are now, in the memory of those that brought them; how often each lane is in them."""
        parts = [member.part if member.part_of == round else {} for member in members]
        for one in slices:
            sums = [sum(values[one] for values in part.values()) & MASK for part in parts]
            self.totals[one] = mix(*sums) if self.loose else sum(sums) & MASK
        self.added()
        return [sum(lane in part for part in parts) for lane in range(self.sharding.lanes)]

    def fill(self, number: int, other: Worker) -> None:
        """Copy a slice from another holder."""
        self.moments[number], self.weights[number] = other.moments.get(number, 0), other.weights[number]
        self.version[number] = other.version.get(number, NEVER)
        self.agreed.pop(number, None)

    def agree(self, digests: dict[int, tuple[int, int]]) -> None:
        """All holders have these."""
        self.agreed = digests

    def take(self, number: int, other: Worker) -> int:
        """Take the new weights of a slice, if they are what was agreed on; a number that tells versions apart."""
        if other.digest(number)[0] != self.agreed[number][0]:
            raise Failure  # they were damaged since; their holder will find that when it is asked to update
        self.weights[number] = other.weights[number]
        return self.weights[number]

    def hold(self, slices: Iterable[int]) -> None:
        """Exactly these are held from now on."""

    def cargo(self) -> Any:
        """What a newcomer takes."""
        return list(self.weights)

    def adopt(self, cargo: Any) -> None:
        """Become a member with another's weights."""
        self.weights = list(cargo)

    def _strikes(self, what: str, round: int) -> bool:
        if self.flip != (what, round):
            return False
        self.flip = None
        return True


@dataclass(eq=False)
class Courier(Member):
    """A member and its worker."""

    memory: ShardedState
    worker: Worker = field(kw_only=True)
    status: str = "alive"
    chosen: bool = False
    """Whether it has been decided how its operation ends."""
    place: int = 0
    """How many slices its operation has done."""
    gives: frozenset[int] = frozenset()
    """The slices that it gives out, and writes to checkpoints."""
    table: dict[int, Any] = field(default_factory=dict)
    """The digests that the holders of each slice agreed on last."""


class ShardedWorld(Ulfm):
    """All members. In `order`, each moves until it must wait; with real dice, one move each, in any order."""

    def __init__(
        self, members: int, rounds: int, *, slices: int = 4, buddies: int = 1, fills: int = 2, lanes: int = 5,
        spares: int = 0, measures: int = 0, kills: Iterable[Kill] = (), strays: Iterable[Kill] = (),
        reforms: Iterable[int] = (),
        flips: dict[int, tuple[str, int]] | None = None, dice: random.Random | None = None,
        order: Sequence[int] | None = None, loose: bool = False, run: Run = run_sharded_member,
        worker: type[Worker] = Worker, early: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(dice or Choices(), lanes)
        self.sharding = Sharding(slices, buddies, lanes, members, fills, measures)
        self.rounds, self.loose, self.run_member = rounds, loose, run
        self.order = order or range(members + spares)
        self.kills = {(kill.rank, kill.operation, kill.entered) for kill in kills}
        self.strays = {(kill.rank, kill.operation, kill.entered) for kill in strays}
        """Where only the courier dies: its worker is in the next world, if that comes before it is ended."""
        self.reforms = set(reforms)
        self.disturbed = bool(self.kills or self.strays or self.reforms or flips)
        self.simple = fills == 2 and slices == 4 and not (spares or self.reforms)
        self.begun, self.worlds, self.moves, self.last = False, 0, 0, NEVER
        """`last`: the latest round that was done when somebody died."""
        self.disk = Disk(slices, early)
        """What would be left if everybody died now."""
        self.given: dict[tuple[int, int], int] = {}
        """The weights of each slice that anyone was given, by round."""
        self.trace: list[tuple[Kill, int]] = []
        """Every point where a member can die, and the round that it has done."""
        self.members: list[Courier] = []
        for rank in range(members + spares):
            memory = ShardedState(rank)
            made = worker(self.sharding, rounds, rank, loose=loose, flip=(flips or {}).get(rank))
            self.members.append(Courier(memory, run(memory, self.sharding), Group(0, ()), worker=made))
        world = self.group(self.members)
        for member in self.members:
            member.world = world
            self.advance(member, None)

    def run(self) -> ShardedWorld:
        while alive := [self.members[rank] for rank in self.order if self.members[rank].status == "alive"]:
            before = self.moves
            if not isinstance(self.dice, Choices):
                self.dice.shuffle(alive)
            for member in alive:
                while member.status == "alive" and self.progress(member):
                    self.moves += 1
                    if self.moves in self.reforms:
                        self.reform()
                    if not isinstance(self.dice, Choices):
                        break
            if self.moves == before:
                raise Hang(f"nobody can continue: { {m.memory.rank: m.operation for m in alive} }")
            if self.moves > 20_000:
                raise Hang("this does not end")
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
            member.world, member.active = world, None
            member.steps = self.run_member(member.memory, self.sharding, world=self.worlds, fresh=not self.begun)
            self.advance(member, None)

    def advance(self, member: Member, result: Any, failure: Failure | None = None) -> None:
        assert isinstance(member, Courier)
        was = member.memory.done if member.memory.active else None
        try:
            member.operation = member.steps.throw(failure) if failure else member.steps.send(result)
            if was is not None and member.memory.done > was:
                self.commit(member)
            member.entered, member.chosen, member.place = False, False, 0
            member.operations += 1
            self.maybe_die(member, entered=False)
        except StopIteration:
            member.status = "ended"
            self.disk.confirm(member.memory.rank)
        except Evicted:
            self.end(member, "evicted")
        except Lost:
            here = [m for m in member.world.members if m.status == "alive" and m.memory.active]
            newest = max((m.memory.joined for m in here), default=(0, 0))
            holding = {number for m in here if m.memory.came >= newest for number in m.memory.held}
            if len(holding) == self.sharding.slices:
                raise Violation("a checkpoint is asked for, but every slice has a holder") from None
            self.end(member, "lost")

    def commit(self, member: Courier) -> None:
        """A worker has the weights of a round, and its script goes on."""
        self.disk.committed(member.memory.rank, member.memory.done, member.gives, member.table)

    def end(self, member: Courier, status: str) -> None:
        member.status, self.disturbed = status, True
        self.last = max(self.last, *(m.memory.done for m in self.members))

    def entered(self, member: Member) -> None:
        assert isinstance(member, Courier)
        self.maybe_die(member, entered=True)

    def maybe_die(self, member: Courier, *, entered: bool) -> None:
        here = (member.memory.rank, member.operations, entered)
        self.trace.append((Kill(*here), member.memory.done))
        if here in self.kills or here in self.strays:
            self.end(member, "dead" if here in self.kills else "stray")

    def looks_alive(self, member: Member, other: Member) -> bool:
        del member
        assert isinstance(other, Courier)
        return other.status == "alive" or (other.status == "ended" and not self.disturbed)

    # ── operations ──

    def progress(self, member: Member) -> bool:
        assert isinstance(member, Courier)
        match member.operation:
            case Prepare() as prepare:
                return self.prepare(member, prepare)
            case Update(round=number, slices=slices):
                if member.place == 0:
                    member.worker.judge(number)
                return self.piece_by_piece(member, sorted(slices), lambda one: member.worker.update(number, one))
            case Measure() if member.memory.active and not member.entered:
                try:
                    member.worker.check(member.memory.held)
                except Evicted:
                    self.end(member, "evicted")
                    return True
            case Give() as give:
                return self.take_weights(member, give)
        return super().progress(member)

    def piece_by_piece(self, member: Courier, slices: Sequence[int], do: Callable[[int], None]) -> bool:
        """One slice per move; a member can die after the first."""
        if member.place == len(slices):
            return self.give(member)
        try:
            do(slices[member.place])
        except Evicted:
            self.end(member, "evicted")
            return True
        except Failure:
            return self.fail(member)
        member.place += 1
        if member.place == 1:
            self.maybe_die(member, entered=True)
        return True

    def gives_up(self, member: Courier, needed: Iterable[Member]) -> bool:
        """Whether a member in the middle of something hears of a death, or of a revocation, and fails."""
        group = self.group_of(member)
        broken = self.is_revoked(member, member.world) or self.is_broken(member, group)
        if not broken or member.chosen:
            return broken and not all(self.looks_alive(member, other) for other in needed)
        member.chosen = True
        return self.dice.random() < 0.5

    def prepare(self, member: Courier, prepare: Prepare) -> bool:
        sources = {
            fill.slice: self.by_rank(member, fill.source) for fill in prepare.fills if fill.target == member.memory.rank
        }
        if self.gives_up(member, sources.values()):
            return self.fail(member)
        if member.place == 0:
            member.memory.leaving = member.memory.done == self.rounds - 1
            member.worker.hold(member.memory.held)
            member.worker.work(prepare.round.number, prepare.lanes, leaving=member.memory.leaving)

        return self.piece_by_piece(
            member, sorted(sources), lambda number: member.worker.fill(number, sources[number].worker)
        )

    def take_weights(self, member: Courier, give: Give) -> bool:
        rank, held = member.memory.rank, member.memory.held
        member.gives = frozenset(n for n, giver in enumerate(give.givers) if giver == rank and n in held)
        wanted = [n for n in range(self.sharding.slices) if n not in held] if give.take else []
        givers = {number: self.by_rank(member, give.givers[number]) for number in wanted}
        if self.gives_up(member, givers.values()):
            return self.fail(member)

        def take(number: int) -> None:
            weights = member.worker.take(number, givers[number].worker)
            if self.given.setdefault((give.round, number), weights) != weights:
                raise Violation(f"two versions of slice {number} were given out in round {give.round}")

        return self.piece_by_piece(member, wanted, take)

    def by_rank(self, member: Courier, rank: int) -> Courier:
        return next(other for other in member.world.members if other.memory.rank == rank)

    def group_of(self, member: Member) -> Group:
        sharded = isinstance(member.operation, (Prepare, Scatter, Meet, Measure, Update, Compare, Give))
        return member.active if sharded and member.active else member.world

    def put_in(self, member: Member, group: Group) -> Any:
        assert isinstance(member, Courier)
        match member.operation:
            case Scatter() | Meet():
                return True
            case Measure(round=number, stage=stage):
                return self.measure(member, number, stage)
            case Compare():
                held = member.memory.held if member.memory.active else ()
                return {number: member.worker.digest(number) for number in held}
        return super().put_in(member, group)

    def take_out(self, member: Member, group: Group, turn: int, inputs: dict[Member, Any]) -> Any:
        assert isinstance(member, Courier)
        match member.operation:
            case Scatter(round=current, slices=slices):
                return self.scatter(member, group, current.number, slices)
            case Meet():
                return None
            case Measure(stage=stage):
                said: dict[int, int] = {}
                for number, value in (pair for one in inputs.values() for pair in one.items()):
                    if said.setdefault(number, value) != value:
                        raise Violation(f"two holders of slice {number} measured different things")
                if member.memory.active:
                    member.worker.measured(stage, said)
                return None
            case Compare():
                return self.compare(member, inputs)
        return super().take_out(member, group, turn, inputs)

    def scatter(self, member: Courier, group: Group, number: int, slices: Iterable[int]) -> Total:
        counts = member.worker.scatter(number, [m.worker for m in group.members], slices)
        digests = {m.memory.rank: m.worker.footer for m in group.members}
        return Total(counts, digests, sum(m.memory.leaving for m in group.members))

    def measure(self, member: Courier, number: int, stage: int) -> dict[int, int]:
        """What a member says: nothing before it is one, and what it said before if it has done the round."""
        if not member.memory.active:
            return {}
        return member.worker.measure(number, stage, sorted(member.memory.held))

    def compare(self, member: Courier, inputs: dict[Member, Any]) -> dict[int, dict[int, int]]:
        copies: dict[int, dict[int, tuple[int, int]]] = {}
        for other, digests in inputs.items():
            for number, digest in digests.items():
                copies.setdefault(number, {})[other.memory.rank] = digest
        if all(len(set(digests.values())) == 1 for digests in copies.values()):
            member.table = {number: min(digests.values()) for number, digests in copies.items()}
            member.worker.agree(dict(member.table))
        return {number: {rank: mix(*both) for rank, both in digests.items()} for number, digests in copies.items()}

    def wait(self, member: Member) -> bool:
        if self.is_revoked(member, member.world):
            return self.fail(member)
        if all(m.status != "alive" or isinstance(m.operation, Wait) for m in self.members):
            return self.give(member)
        return False

    def cargo(self, member: Member, what: Payload) -> Any:
        assert isinstance(member, Courier) and what is Payload.STATE
        return member.worker.cargo(), self.disk.pending.get(member.memory.rank)

    def take(self, member: Member, what: Payload, cargo: Any) -> None:
        assert isinstance(member, Courier) and what is Payload.STATE
        found, pending = cargo
        member.worker.adopt(found)
        if pending is not None:
            self.disk.pending[member.memory.rank] = pending


def undisturbed(rounds: int, slices: int = 4, lanes: int = 5, measures: int = 0) -> Worker:
    """What one worker alone comes to."""
    alone = Worker(Sharding(slices, 0, lanes, 1, measures=measures), rounds, 0)
    for number in range(rounds):
        alone.work(number, range(lanes), leaving=False)
        for one in range(slices):
            alone.totals[one] = sum(values[one] for values in alone.part.values()) & MASK
        for stage in range(measures):
            alone.measured(stage, alone.measure(number, stage, range(slices)))
        for one in range(slices):
            alone.update(number, one)
    return alone


def explore(make: Callable[[Choices], ShardedWorld]) -> Iterator[ShardedWorld]:
    """Every outcome of a world: it is made again for each, and has run."""
    told: list[int] | None = []
    while told is not None:
        choices = Choices(told)
        yield make(choices).run()
        told = choices.next()
