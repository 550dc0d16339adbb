"""Sharded rounds over shared memory, in the jobs of `shm_jobs.py`: updates in stages, copies of slices, who holds what.

The worker's side is the real `SliceSide` with the real `Holder`, whose slices hold nothing but whose they are; the
courier's is the real `SlicePort` and `ShardedMemory`. The other members are imagined: they fill a slice here, ask for a
copy of another, and have the sums of squares of all slices. What the worker and its courier find in each other's tables
says of which job, round and stage it is, and is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Self, cast
from unittest import mock

import numpy as np

from meshmend.job.courier.slice_port import SlicePort
from meshmend.job.protocol import NEVER
from meshmend.job.sharding.records import BEFORE
from meshmend.job.shm.mailbox import CourierSide, WorkerSide
from meshmend.job.shm.segment import CourierSegment, WorkerSegment
from meshmend.job.shm.sharded_memory import ShardedMemory
from meshmend.job.slices import answers
from meshmend.job.slices.answers import SliceSide
from meshmend.job.slices.holder import Copy, Holder, State, Totals
from meshmend.job.state.codec import decode, encode
from tests.simulators.interleaving import Actor, Interleaving, Killed, SteppedFiles
from tests.simulators.shm_jobs import JOBS, LANES, ROUNDS, Jobs, lanes_in

MEASURES = 1
"""Stages of a round before its update."""
FIRST = frozenset({1, 40})
"""The slices that the rank holds at first: in several words of a message."""
FILLS = {1: frozenset({80}), ROUNDS: frozenset({40})}
"""Those that others fill here, by round; in the round in which all leave, nobody takes them any more."""
COPIES = {1: (1, 40), ROUNDS: (80,)}
"""Those that others want copies of; before the first update nobody does, as all have what they should."""
AFTER = {0: frozenset({1, 40}), 1: frozenset({1, 80})}
"""What the rank holds after each round."""
EVERY = (1, 40, 80)
SLICES = 81


def digests_of(job: int, round: int, number: int) -> tuple[int, int]:
    """Of a slice after a round."""
    return 1000 * job + round, number


class Sharded(Jobs):
    """One run of a script whose jobs are sharded."""

    def __init__(self, *about: Any, **more: Any) -> None:
        super().__init__(*about, **more)
        self.job = 0
        self.tables = SteppedTables(self)
        self.locked: Actor | None = None
        self.slices: SliceSide | None = None
        self.ever_held: list[frozenset[int]] = [frozenset()]
        """What the courier has ever written that the rank holds, in this job."""
        self.add("listener", self.listener)

    def run(self) -> Self:
        with mock.patch.object(answers, "SliceMemory", SimpleNamespace(make=lambda *_: self.tables)):
            return super().run()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """The listener's lock."""
        self.wait(lambda: self.locked is None)
        self.locked = self.current
        try:
            yield
        finally:
            self.locked = None
            self.version += 1

    # the worker

    def opens(self, segment: WorkerSegment, job: int) -> None:
        segment.buffers = cast(Any, SimpleNamespace(total=lambda round: self.totals[round % 2]))
        footer = SimpleNamespace(notes=lambda _: ())
        listener = SimpleNamespace(changing=self.changing)
        self.job = job
        slices = SliceSide(segment, cast(Any, footer), cast(Any, listener), cast(Any, Replica(self, job)), 1)
        segment.worker.lanes, segment.worker.step = LANES[job], 10 * job
        segment.worker.slices = 0
        slices.begin()
        self.slices = slices
        segment.worker.ready = job

    def closes(self, segment: WorkerSegment, job: int) -> None:
        with self.changing():  # as `Listener.close`
            self.slices = None
        segment.worker.left = job

    def owes_update(self, round: int) -> bool:
        return self.slices is not None and self.slices.wanted(round)

    def update(self, round: int) -> None:
        if self.slices is not None and self.slices.wanted(round):
            self.slices.update(round)

    def take_part(self, side: WorkerSide, job: int, round: int) -> None:
        super().take_part(side, job, round)
        assert self.slices is not None
        with self.changing():
            replica = cast(Replica, self.slices._replica)
            for number in EVERY:
                found = cast(Any, self.tables.agreed[number])
                assert found == digests_of(job, round, number), f"holders agreed on {found} for slice {number}"
                replica.table[number] = np.array(found)
                if number in replica.holder.copies:
                    replica.holder.copies[number].agreed = found

    def listener(self) -> None:
        """The second thread of the worker: hands out copies of slices."""
        while not self.actors[0].ended:
            self.wait(lambda: self.actors[0].ended or self._asked_for_copies())
            with self.changing():
                if self.slices is not None:
                    self.slices.hand_out()

    def _asked_for_copies(self) -> bool:
        return self.slices is not None and self.slices._side.copies_request() is not None

    # the courier

    def carry(self, segment: CourierSegment, job: int, world: int) -> None:
        """As `run_sharded_member`, of one member."""
        side, memory = CourierSide(segment), ShardedMemory(segment)
        port = Port(self, segment, side, memory)
        found = memory.held
        if not memory.active:
            assert memory.done == memory.met[0] == memory.totals[0] == NEVER and not found, (
                f"job {job} has begun before"
            )
            memory.active = True
            self.ever_held = [frozenset()]
        assert found in self.ever_held[-2:], f"{found} is not what a courier has written: {self.ever_held}"
        if memory.met[0] == NEVER:
            self.hold(memory, FIRST)
        if memory.met[0] > memory.done:
            assert memory.totals == memory.met
            self.finish(port, memory, job)
        for round in range(memory.done + 1, ROUNDS):
            self.prepare(port, memory, job, round)
            memory.totals = BEFORE
            self.put(self.totals[round % 2], job, round)
            memory.totals = round, world, 0
            memory.met = memory.totals
            self.finish(port, memory, job)
        self.prepare(port, memory, job, ROUNDS)
        side.finish()

    def hold(self, memory: ShardedMemory, held: frozenset[int]) -> None:
        """What the next courier may find."""
        if held != self.ever_held[-1]:
            self.ever_held.append(held)
        memory.held = held
        assert memory.held == held

    def prepare(self, port: Port, memory: ShardedMemory, job: int, round: int) -> None:
        """The part, and copies of slices meanwhile: as `ShardedMpi` does."""
        lanes = lanes_in(job, round)
        port.side.ask_part(round, lanes)
        wanted = [number for number in COPIES.get(round, ()) if number in memory.held]
        if wanted:
            for number, data in port.copies_of(wanted, lambda: None).items():
                leaves, about = decode(data, None)
                whose = dict(leaves)["whose"].tolist()
                assert whose == [job, memory.done, number] and about["version"] == memory.done, f"{whose}, {about}"
            port.drop_copies()
        fills = FILLS.get(round, frozenset()) - memory.held
        for number in fills:
            state = [("whose", np.array([job, memory.done, number]))]
            data = b"".join(bytes(piece) for piece in encode(state, version=memory.done, job=job))
            port.fill(number, np.frombuffer(data, np.uint8), lambda: None)
        self.until(port.segment, port.side.is_answered)
        assert self.get(self.part) == [job, round, lanes]
        if fills:
            self.hold(memory, memory.held | fills)

    def finish(self, port: Port, memory: ShardedMemory, job: int) -> None:
        """The second half of a round, as `finish` does it."""
        round = memory.met[0]
        for stage in range(MEASURES):
            port._ask(round, stage)
            assert self.tables.measured[stage] == (job, round, stage)
            self.tables.squares[stage] = job, round, stage
        port.update(round, memory.held)
        for number in memory.held:
            digests = self.tables.digests[number]
            assert digests == digests_of(job, round, number), f"slice {number} has {digests} after round {round}"
        for number in EVERY:
            self.tables.agreed[number] = digests_of(job, round, number)
        port.gives(memory.held)
        memory.done = round
        self.hold(memory, AFTER[round])


class Port(SlicePort):
    """The worker as its courier sees it."""

    def __init__(self, simulation: Sharded, segment: CourierSegment, side: CourierSide, memory: ShardedMemory) -> None:
        self.simulation, self.segment, self.side, self._memory = simulation, segment, side, memory
        segment.courier_bell = cast(Any, Bell(simulation))

    def drop_copies(self) -> None:
        cast(SteppedFiles, self.segment.files).drop_copies()

    def _end_with_worker(self) -> None:
        if self.simulation.ends(self.segment):
            raise Killed
        self._check()


class Bell:
    """Rings whenever something has changed since it was last heard."""

    def __init__(self, simulation: Interleaving) -> None:
        self._simulation, self._heard = simulation, -1

    def ring(self) -> None:
        pass

    def wait(self, seconds: float) -> None:
        del seconds
        self._simulation.wait(lambda: self._simulation.version != self._heard)
        self._heard = self._simulation.version


class SteppedTables:
    """Takes the place of `SliceMemory`: each row is several steps."""

    def __init__(self, simulation: Interleaving) -> None:
        self.measured = Rows(simulation, MEASURES)
        self.squares = Rows(simulation, MEASURES)
        self.digests = Rows(simulation, SLICES)
        self.agreed = Rows(simulation, SLICES)


class Rows:
    """A table of which no row is written whole."""

    def __init__(self, simulation: Interleaving, count: int) -> None:
        self._simulation, self._rows = simulation, [[None, None, None] for _ in range(count)]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        return tuple(word for word in self._simulation.get(self._rows[number]) if word is not None)

    def __setitem__(self, number: int, values: Any) -> None:
        self._simulation.put(self._rows[number], *([0, 0, 0] if values is None else values))


class Shelf(Holder):
    """A holder whose slices only know whose they are."""

    def __init__(self, simulation: Sharded, job: int) -> None:
        self.simulation, self.job = simulation, job
        self.version, self.copies, self.totals = NEVER, {}, Totals()
        self.stages = cast(Any, SimpleNamespace(table=np.zeros((MEASURES, 1, 1))))
        self.slicing = cast(Any, SimpleNamespace(bounds=[*range(SLICES + 1)]))
        self._first: Callable[[int], State] = lambda number: {"whose": np.array([job, NEVER, number])}
        self.squared = NEVER

    def measure(self, round: int, stage: int) -> Any:
        return SimpleNamespace(reshape=lambda _: (self.job, round, stage))

    def judge(self) -> None:
        return None

    def _apply(self, number: int, copy: Copy) -> None:
        round = self.totals.round
        assert self.squared == round, f"updated in round {round} with norms of round {self.squared}"
        assert copy.state["whose"].tolist() == [self.job, round - 1, number]
        self.simulation.step()
        copy.state = {"whose": np.array([self.job, round, number])}

    def digests(self, number: int) -> tuple[int, int]:
        job, round, _ = self.copies[number].state["whose"].tolist()
        return digests_of(job, round, number)


class Replica:
    """Takes the place of `ShardedReplica`."""

    wrong = -1

    def __init__(self, simulation: Sharded, job: int) -> None:
        self.simulation, self.job, self.holder = simulation, job, Shelf(simulation, job)
        self.memory: Any = None
        self.table = np.zeros((SLICES, 2), np.int64)

    def share(self, memory: SteppedTables) -> None:
        self.memory = memory

    def begin(self, round: int, total: list[Any]) -> None:
        assert self.simulation.get(total) == [self.job, round], "the totals are those of another round"
        if self.holder.totals.round != round:
            self.holder.totals = Totals(round, judged=True)

    def measured(self, stage: int, squares: Any) -> None:
        assert squares == (self.job, self.holder.totals.round, stage), f"the norms are of {squares}"
        self.holder.squared = self.holder.totals.round

    def apply(self, round: int, total: list[Any]) -> None:
        self.begin(round, total)
        self.holder.update(round, self.holder.copies)


assert set(LANES) == set(range(1, JOBS + 1))
