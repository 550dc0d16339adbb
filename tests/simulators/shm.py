"""A worker, its courier and its agent over the production classes of `job/shm`, with every access a step.

Any actor may be interrupted or killed before any step (`interleaving.py`). A killed courier is replaced by another one,
in the next world; a killed worker takes its second thread along, and its courier has to notice. The actors are small
loops, but every access they make is made by `WorkerSide`, `CourierSide`, `SharedMemory`, `tell` and the records
themselves. Sharded rounds are in `shm_sharded.py`, the change of job and the agent in `shm_jobs.py`.

Rounds are summed in device memory, in the host's, and in slices there, one after the other; the courier of the next
world sums the round that the one before could not finish another way.

    Simulation(policy, kill=("courier", 17)).run()

raises `AssertionError` where an invariant is broken, and `Deadlock` where all wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshmend.job.protocol import NEVER
from meshmend.job.shm.mailbox import CourierSide, WorkerSide, tell
from meshmend.job.shm.marks import BITS, mark, of_total_in_buffer, where_is
from meshmend.job.shm.memory import SharedMemory
from meshmend.job.shm.records import (
    AgentRecord,
    DeviceWanted,
    Order,
    Outcome,
    PartWanted,
    Task,
    Where,
    WritableAgentRecord,
)
from meshmend.job.shm.segment import AgentSegment, CourierSegment, WorkerSegment
from meshmend.telemetry import Epoch
from tests.simulators.interleaving import Actor, Interleaving, Policy, stay

ROUNDS = 3
ATTEMPT = 4
OWN, OTHERS = b"own", b"other"
"""The state that the worker comes with, and that of another worker."""


def lanes_of(round: int) -> tuple[int, ...]:
    """Lanes of a round, spread over three words."""
    return (round, 40 + round, 80 + round)


def more_lanes(lanes: tuple[int, ...], world: int) -> tuple[int, ...]:
    """What a repair adds to them, also in each word."""
    return tuple(sorted({*lanes, 10 + world, 50 + world, 90 + world}))


class Simulation(Interleaving):
    """One run."""

    def __init__(
        self, policy: Policy, *, kill: tuple[str, int] | None = None, newcomer: bool = False, halt: int | None = None
    ) -> None:
        super().__init__(policy, kill=kill)
        self.newcomer, self.world = newcomer, 0
        WritableAgentRecord(self.words[AgentRecord]).attempt = ATTEMPT
        self.part: list[Any] = [None, None]
        self.totals: list[list[Any]] = [[None, None], [None, None]]
        self.slices: list[list[Any]] = [[None, None], [None, None]]
        """Totals in device memory: the round, and the question that they answer."""
        self.placed: dict[int, int | None] = {}
        """The question that each round's total in device memory answers; None where it is in the buffer."""
        self.where: dict[int, Where] = {}
        """Where each round's total is."""
        self.made: dict[int, Epoch] = {}
        """In which membership the total of each round was made."""
        self.posted: list[PartWanted] = []
        self.device_posted: list[DeviceWanted] = []
        self.assigned: list[tuple[int, tuple[int, ...]]] = [(NEVER, ())]
        self.worker_dead = self.saved = False
        self.digested, self.joined, self.state = NEVER, False, OWN
        self.begun = OWN
        self.done_by_worker = NEVER
        self.add("worker", self.worker)
        self.add("listener", self.listener)
        self.halt_after = halt
        if halt is not None:
            self.add("agent", self.agent)
        self.new_courier()

    def died(self, actor: Actor) -> None:
        if actor.name == "courier":
            self.start(self.new_courier())
        elif actor.name in ("worker", "listener"):
            self.worker_dead = True
            for other in self.actors:
                other.doomed |= other.name in ("worker", "listener", "agent")

    def new_courier(self) -> Actor:
        """A courier of the next world."""
        self.world += 1
        world = self.world
        return self.add("courier", lambda: self.courier(world), world)

    def worker(self) -> None:
        """The main thread of a worker, as `WorkerSession` has it."""
        segment: WorkerSegment = self.segment(WorkerSegment)
        side = WorkerSide(segment)

        def wait(until: Callable[[], object]) -> bool:
            """Whether to go on."""
            self.wait(lambda: until() or side.halt() is not None)
            halt = side.halt()
            self.saved = self.saved or halt is Order.HALT_AND_SAVE
            return halt is None

        segment.worker.lanes = 128
        segment.worker.ready = 1
        if not wait(lambda: side.is_active() or side.is_over()) or not side.is_active():
            return
        given = side.take_given()
        if given is not None:
            self.state = bytes(given)
            assert self.state == OTHERS
        self.begun = self.state
        self.done_by_worker = self.digested = segment.courier.done
        self.joined = True
        self.version += 1
        for round in range(self.digested + 1, ROUNDS):
            while True:
                if not wait(lambda round=round: side.has_total(round) or side.question(round)):  # type: ignore[misc]
                    return
                if side.has_total(round):
                    break
                question = side.question(round)
                if question is not None:
                    assert question.body in self.posted, f"{question} was never asked"
                    self.put(self.part, question.body.round, question.body.lanes)
                    side.answer(question)
            placed = self.placed[round]
            assert where_is(segment.courier, round) is self.where[round]
            if placed is not None:
                assert self.get(self.slices[round % 2]) == [round, placed]
            assert self.get(self.totals[round % 2]) == [round, "total"]
            made = self.made[round]
            assert of_total_in_buffer(segment.courier, round) == mark(round, made.world << BITS | made.shrink)
            assert segment.epoch == self.made[round], f"round {round} was made in {self.made[round]}"
            self.state = self.begun + b"%d" % round
            self.digested = self.done_by_worker = round
            self.version += 1
        wait(side.is_over)

    def listener(self) -> None:
        """The second thread of a worker: exports the state, and does what the courier needs a device for."""
        segment: WorkerSegment = self.segment(WorkerSegment)
        side = WorkerSide(segment)
        worker = self.actors[0]
        while not worker.ended:
            self.wait(lambda: worker.ended or side.state_request() or side.device_request())
            self.serve(segment, side)
            self.read_late(segment)
            request = side.state_request()
            if request is None:
                continue
            final = self.digested >= request.body.round and (self.joined or not side.has_given())
            if final and request is not None:
                round, state = self.digested, self.state
                side.give_state(request, round, [b"%d:" % round, state])
            else:
                self.wait(lambda before=self.version: worker.ended or self.version != before)  # type: ignore[misc]

    def read_late(self, segment: WorkerSegment) -> None:
        """What a worker finds that the others believe dead: the mark of whatever it reads says that it is too late."""
        for place in range(2):
            round, _ = self.get(self.totals[place])
            assert (NEVER if round is None else round) <= of_total_in_buffer(segment.courier, place) >> 2 * BITS

    def serve(self, segment: WorkerSegment, side: WorkerSide) -> None:
        """What `DeviceSums` does: add up a slice of a round that is not over."""
        request = side.device_request()
        if request is None:
            return
        round = request.body.round
        assert request.body in self.device_posted, f"{request} was never asked"
        if round != segment.courier.done + 1:
            side.answer_device(request, Outcome.GONE)
            return
        segment.worker.even_total = round
        self.put(self.slices[round % 2], round, request.number)
        side.answer_device(request, Outcome.DONE)

    def courier(self, world: int) -> None:
        """A courier, as the protocol drives it: one member is all it knows."""
        segment: CourierSegment = self.segment(CourierSegment)
        side, memory, record = CourierSide(segment), SharedMemory(segment), segment.courier
        segment.begin_job(1)
        record.world = world
        record.shrink = 0
        if not memory.active:
            if self.newcomer and world % 2:
                side.give([OTHERS])
                memory.copied = (0, 1)
                memory.done, memory.active = 0, True
            else:
                if not self.export(side, NEVER):
                    return
                memory.active = True
        copied, rounds = memory.copied, memory.done
        if rounds in self.made:  # whoever lacks that total asks this courier for it
            assert where_is(record, rounds) is self.where[rounds], f"round {rounds} is not there"
            made = self.made[rounds]
            assert memory.made_by == (made.world, made.shrink), f"the total of round {rounds} was made in {made}"
        assert copied in ((NEVER, -1), (0, 1)), copied
        found = memory.assigned
        assert found in self.assigned, f"{found} was never assigned"
        lanes = more_lanes(memory.lanes or lanes_of(rounds + 1), world)
        while rounds + 1 < ROUNDS:
            round = rounds + 1
            self.assign(memory, round, lanes)
            asked = PartWanted(round, world > 1, lanes)
            self.posted.append(asked)
            side.ask_part(asked.round, asked.lanes, afresh=asked.afresh)
            if not self.until(side.is_answered):
                return
            assert self.get(self.part) == [round, lanes], f"{self.part} is no answer to {asked}"
            self.placed[round], where = None, [Where.SLICES, Where.DEVICE, Where.BUFFER][(round + world) % 3]
            if where is Where.DEVICE:
                wanted = DeviceWanted(Task.ADD, round, (world, world << 40, world))
                self.device_posted.append(wanted)
                side.ask_device(wanted.task, wanted.round, wanted.members)
                found = list[Outcome | None]()
                if not self.until(lambda: found.append(side.device_outcome()) or found[-1] is not None):  # type: ignore[func-returns-value]  # noqa: B023
                    return
                assert found[-1] is Outcome.DONE
                self.placed[round] = side._device
                assert self.get(self.slices[round % 2]) == [round, side._device], "it was said to be complete"
            record.shrink += 1
            side.begin_total(round)
            self.put(self.totals[round % 2], round, "total")
            side.place_total(round, where)
            self.where[round] = where
            self.made[round] = Epoch(ATTEMPT, world, record.shrink)
            memory.complete(round, (world, record.shrink))
            rounds, lanes = round, lanes_of(round + 1)
            self.assign(memory, round + 1, lanes)
            if round == 1 and not self.export(side, round):
                return
        if self.until(lambda: self.done_by_worker == ROUNDS - 1):
            side.finish()

    def assign(self, memory: SharedMemory, round: int, lanes: tuple[int, ...]) -> None:
        """What the next courier may find."""
        self.assigned.append((round, lanes))
        memory.assign(lanes)
        assert memory.lanes == lanes

    def export(self, side: CourierSide, round: int) -> bool:
        """Ask for the state, and check that it is the one of the round asked for; False if the worker is dead."""
        side.ask_state(round)
        found: list[Any] = []
        if not self.until(lambda: found.append(side.state()) or found[-1] is not None):  # type: ignore[func-returns-value]
            return False
        given, state = found[-1]
        assert given == round and bytes(state).startswith(b"%d:" % round), f"{bytes(state)!r} after round {round}"
        return True

    def until(self, done: Callable[[], object]) -> bool:
        """What `ExitProbe` does: False if the worker has ended before."""
        self.wait(lambda: self.worker_dead or self.actors[0].ended or done())
        return not (self.worker_dead or self.actors[0].ended)

    def agent(self) -> None:
        """Halts the run after a round; a release that comes later changes nothing."""
        segment: AgentSegment = self.segment(AgentSegment)
        self.wait(lambda: self.done_by_worker >= (self.halt_after or 0))
        tell(segment, Order.HALT_AND_SAVE)
        tell(segment, Order.RELEASE)


def replace_courier(at: int) -> Policy:
    """The courier dies at this step of the whole run, and the next one comes as far as it can, all in one moment.

    Whoever was reading then finds half of the old courier's words and half of the new one's.
    """

    def chosen(simulation: Interleaving, actor: Actor, runnable: list[Actor]) -> Actor:
        couriers = [one for one in simulation.actors if one.name == "courier" and not one.ended]
        if simulation.total_steps == at and actor.name != "courier" and couriers:
            simulation.kills = [("courier", couriers[-1].steps + 1)]
            return couriers[-1]
        if actor not in runnable and couriers and couriers[-1].number > 1 and couriers[-1] in runnable:
            return couriers[-1]
        return stay(simulation, actor, runnable)

    return chosen
