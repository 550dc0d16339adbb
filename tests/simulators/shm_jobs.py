"""The jobs of a script, one after another, with an agent that forms worlds: as `interleaving.py` has it.

The worker opens its jobs; the agent has a courier started for each world, lets it in, and lets the worker go where that
is asked for. Anybody may be killed before any step. A killed agent is replaced by another one, which knows only what
is in shared memory. Every access is made by the classes of production, those of the agent included: `LocalWorker.clear`
and `Agent._enter`. Couriers enter their world as `Courier.enter` does, which cannot be imported without MPI.

    Jobs(policy, kill=("agent", 17)).run()
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from meshmend.base.processes import Identity
from meshmend.job.protocol import NEVER
from meshmend.job.shm.mailbox import CourierSide, WorkerSide, is_over, tell
from meshmend.job.shm.memory import SharedMemory
from meshmend.job.shm.records import Order
from meshmend.job.shm.segment import AgentSegment, CourierSegment, WorkerSegment
from meshmend.run.agent.agent import Agent
from meshmend.run.agent.local_worker import LocalWorker
from meshmend.run.agent.messages import Enter
from tests.simulators.interleaving import Actor, Interleaving, Killed, Policy

JOBS, ROUNDS = 2, 2
LANES = {1: 64, 2: 32}
"""Lanes of each job: what the first asks for, the second does not have."""


def lanes_in(job: int, round: int) -> tuple[int, ...]:
    """Those that are asked for."""
    return (round, LANES[job] - 1 - round)


class Jobs(Interleaving):
    """One run of a script with two jobs."""

    def __init__(
        self,
        policy: Policy,
        *,
        kill: tuple[str, int] | None = None,
        then: tuple[str, int] | None = None,
        release: bool = False,
        slow: bool = False,
    ) -> None:
        super().__init__(policy, kill=kill, then=then)
        self.release, self.slow = release, slow
        """Whether the agent lets the worker go from its first job, when it has done all rounds, and whether the script
        takes long between two jobs."""
        self.done_by_worker = dict.fromkeys(LANES, NEVER)
        self.finished = False
        self.worker_dead = False
        self.part: list[Any] = [None, None, None]
        self.totals: list[list[Any]] = [[None, None], [None, None]]
        self.agents = 0
        self.add("worker", self.worker)
        self.new_agent()

    def new_agent(self) -> Actor:
        """The first one, or one that takes over."""
        self.agents += 1
        number = self.agents
        return self.add("agent", lambda: self.agent(number), number)

    def died(self, actor: Actor) -> None:
        if actor.name == "agent":
            self.start(self.new_agent())
        elif actor.name in ("worker", "listener"):
            self.worker_dead = True
            for other in self.actors:
                other.doomed |= other.name in ("worker", "listener")

    @property
    def gone(self) -> bool:
        """Whether the worker has ended."""
        return self.actors[0].ended or self.actors[0].doomed

    # the worker

    def worker(self) -> None:
        """The main thread: `WorkerSession.share`, rounds and `leave`, for each job."""
        segment: WorkerSegment = self.segment(WorkerSegment)
        side = WorkerSide(segment)
        for job in LANES:
            self.opens(segment, job)
            self.wait(lambda: side.is_active() or side.is_over())
            assert side.is_active(), f"job {job} was over before it began"
            done = segment.courier.done
            assert done == NEVER, f"job {job} begins after round {done}"
            for round in range(ROUNDS):
                self.take_part(side, job, round)
            self.leave(side, job)
            self.closes(segment, job)
            if self.slow and job < JOBS:
                self.wait(lambda job=job: segment.courier.job > job)  # type: ignore[misc]
        self.finished = True

    def opens(self, segment: WorkerSegment, job: int) -> None:
        """As `WorkerSession.share` does."""
        segment.worker.lanes, segment.worker.step = LANES[job], 10 * job
        segment.worker.slices = 0
        segment.worker.ready = job

    def closes(self, segment: WorkerSegment, job: int) -> None:
        """As `WorkerSession._close` does."""
        segment.worker.left = job

    def take_part(self, side: WorkerSide, job: int, round: int) -> None:
        """Bring parts until the total of a round is there."""
        while True:
            self.wait(lambda: side.has_total(round) or side.question(round) or self.owes_update(round))
            self.update(round)
            if side.has_total(round):
                break
            self.answer(side, job, round)
        assert self.get(self.totals[round % 2]) == [job, round]
        self.done_by_worker[job] = round
        self.version += 1

    def answer(self, side: WorkerSide, job: int, round: int) -> None:
        """Bring the part that was asked for."""
        question = side.question(round)
        if question is not None:
            assert max(question.body.lanes, default=0) < LANES[job], f"{question} is none of job {job}"
            self.put(self.part, job, round, question.body.lanes)
            side.answer(question)

    def leave(self, side: WorkerSide, job: int) -> None:
        """As `WorkerSession.leave`: bring parts without anything until all have the last total."""
        while not side.is_over():
            self.wait(lambda: side.is_over() or side.question(ROUNDS) or self.owes_update(ROUNDS))
            self.update(ROUNDS)
            self.answer(side, job, ROUNDS)

    def owes_update(self, round: int) -> bool:
        """Whether the courier waits for an update, in a sharded job."""
        del round
        return False

    def update(self, round: int) -> None:
        """Make it."""

    # the courier

    def courier(self, world: int) -> None:
        """As `Courier`: enters its world, and carries sums of the job that this is for."""
        segment: CourierSegment = self.segment(CourierSegment)
        record, agent = segment.courier, segment.agent
        record.standby = world
        self.wait(lambda: self.gone or agent.world >= world)
        self.end_with_world(segment, world)
        job = agent.job
        segment.begin_job(job)
        record.process = Identity(world, 1, 1, 1)
        record.shrink = 0
        record.world = world
        self.end_with_world(segment, world)
        works = [one.number for one in self.actors if one.works and not one.ended and not one.doomed]
        assert not works, f"couriers of worlds {works} and {world} work at the same time"
        self.current.works = True
        self.until(segment, lambda: segment.in_job)
        found = segment.worker.lanes, segment.worker.step
        if segment.in_job and segment.worker.left < job:  # or the worker was let go just now
            assert found == (LANES[job], 10 * job), f"{found} are of another job than {job}"
        self.carry(segment, job, world)

    def end_with_world(self, segment: CourierSegment, world: int) -> None:
        """As `Courier.end_with_world`."""
        if self.gone or segment.agent.world > world or segment.agent.cleared >= world:
            raise Killed

    def until(self, segment: CourierSegment, done: Callable[[], object]) -> None:
        """What `WorkerPort` and `Courier.over` do: end with the worker, or with its job."""
        found: list[object] = []

        def look() -> object:
            found[:] = [done()]
            return found[0] or self.ends(segment)

        self.wait(look)
        if not found[0]:
            raise Killed

    def ends(self, segment: CourierSegment) -> bool:
        """Whether nobody needs this courier any more."""
        return self.gone or is_over(segment) or segment.worker.ready > segment.courier.job

    def carry(self, segment: CourierSegment, job: int, world: int) -> None:
        """Rounds, from the one that the courier before this one has left undone."""
        del world
        side, memory = CourierSide(segment), SharedMemory(segment)
        if not memory.active:
            assert memory.done == NEVER and memory.assigned == (NEVER, ()), f"job {job} has begun before"
            memory.active = True
        for round in range(memory.done + 1, ROUNDS):
            memory.assign(lanes_in(job, round))
            self.ask(segment, side, job, round)
            self.put(self.totals[round % 2], job, round)
            memory.done = round
        self.ask(segment, side, job, ROUNDS)
        side.finish()

    def ask(self, segment: CourierSegment, side: CourierSide, job: int, round: int) -> None:
        """Have the worker bring its part."""
        lanes = lanes_in(job, round)
        side.ask_part(round, lanes)
        self.until(segment, side.is_answered)
        assert self.get(self.part) == [job, round, lanes]

    # the agent

    def agent(self, number: int) -> None:
        """Forms a world whenever there is no courier, or another job."""
        segment: AgentSegment = self.segment(AgentSegment)
        worker = Watched(0, segment)
        worker.simulation = self
        every = cast(Agent, SimpleNamespace(workers={0: worker}, run="simulated", _clear=worker.clear))
        segment.agent.owner = Identity(number, 1, 1, 1)
        attached = number > 1
        """Whether it still has to form its first world: those of the agent before it end."""
        while not self.gone:
            self.wait(lambda: attached or self.gone or self.job_wanted(segment) or self.may_go(segment))  # noqa: B023
            if self.may_go(segment):
                tell(segment, Order.RELEASE, 1)
            job, attached = self.job_wanted(segment, attached=attached), False
            if job and not self.gone:
                world = max(segment.agent.opened, segment.agent.world) + 1
                segment.agent.opened = world
                self.start(self.add("courier", lambda world=world: self.courier(world), world))  # type: ignore[misc]
                Agent._enter(every, Enter(world=world, mpirun=0, formed=0, fresh=True, job=job, wanted=1))

    def may_go(self, segment: AgentSegment) -> bool:
        """Whether the worker is to be told now that it may leave its first job."""
        return self.release and self.done_by_worker[1] == ROUNDS - 1 and segment.agent.order is None

    def job_wanted(self, segment: AgentSegment, *, attached: bool = False) -> int:
        """The job that a world has to be formed for now; 0 for none."""
        left, job, world = segment.worker.left, segment.agent.job, segment.agent.world
        if left >= JOBS:
            return 0
        if left >= max(job, 1):
            return left + 1
        carried = any(one.name == "courier" and one.number == world and not one.ended for one in self.actors)
        return 0 if (carried and not attached) or (job and is_over(segment)) else max(job, 1)

    def kill_courier(self, process: int) -> None:
        """SIGKILL."""
        for one in self.actors:
            if one.name == "courier" and one.number == process:
                one.doomed = True
        self.version += 1


class Watched(LocalWorker):
    """The worker, as the agent has it."""

    simulation: Jobs

    def clear(self) -> None:
        super().clear()
        self.simulation.kill_courier(self.segment.courier.process.number)
