"""One courier, from the start of its world to the end of the job: the MPI process that carries a worker's sums.

It keeps nothing to itself: parts, totals and progress lie in the memory it shares with the worker, so it can be
replaced at any moment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from meshmend.base.clocks import COURIER_START, TOGETHER, WORLD_POLL
from meshmend.base.marked_lines import print_marked
from meshmend.base.processes import Identity
from meshmend.base.units import workers
from meshmend.errors import JobError
from meshmend.job.courier.differences import where, write_down
from meshmend.job.courier.mpi import Mpi, position, size
from meshmend.job.courier.parent import Parent
from meshmend.job.courier.sharded_mpi import ShardedMpi
from meshmend.job.courier.slice_port import SlicePort
from meshmend.job.courier.timings import RepairPhase, Stopwatch
from meshmend.job.courier.worker_port import WorkerPort
from meshmend.job.faults import Faults, Point
from meshmend.job.protocol import (
    Cast,
    Cut,
    Divergence,
    Enlist,
    Evicted,
    Failure,
    Gather,
    Lost,
    Payload,
    Reduce,
    Revoke,
    Shrink,
    Steps,
    Wait,
    Work,
    run_member,
)
from meshmend.job.reduction.registry import kind_of
from meshmend.job.sharding import (
    Compare,
    Give,
    Measure,
    Meet,
    Prepare,
    Scatter,
    ShardedOperation,
    ShardedSteps,
    Sharding,
    Update,
    run_sharded_member,
)
from meshmend.job.sharding.plan import FILLS
from meshmend.job.shm import CourierSegment, open_as_courier, open_to_read, ranks_of
from meshmend.job.shm.mailbox import halt_of, is_over
from meshmend.job.shm.memory import SharedMemory
from meshmend.job.shm.records import CourierPhase
from meshmend.job.shm.sharded_memory import ShardedMemory
from meshmend.job.transport.base import MeshPlans
from meshmend.telemetry import Component, Died, Differed, Epoch, How, Log, Repaired, SingleCopies

POINTS: dict[type[ShardedOperation], Point] = {
    Reduce: Point.ALLREDUCE,
    Scatter: Point.ALLREDUCE,
    Meet: Point.MEET,
    Measure: Point.MEASURE,
    Update: Point.UPDATE,
    Compare: Point.COMPARE,
    Give: Point.GIVE,
    Revoke: Point.REVOKE,
    Shrink: Point.SHRINK,
    Gather: Point.EXCHANGE,
    Enlist: Point.EXCHANGE,
}
"""Where a failure on purpose may strike: before these operations."""
FILL_NUMBERS = 1 << 19
"""Weights whose slices a member receives per round, at least: with Adam's moments these are 4 MB of messages."""
WORKING = (Work, Reduce, Prepare, Scatter)
"""The operations of a round that is not decided."""


class Courier:
    """One courier."""

    def __init__(
        self, run: str, folder: Path, hosts: list[list[int]], world: int, parent: Parent,
        placing: MeshPlans | None = None,
    ) -> None:  # fmt: skip
        self.hosts, self.folder, self.parent = hosts, folder, parent
        ranks = [rank for host in hosts for rank in host]
        if size() != len(ranks):
            # mpirun died before MPI came up, which then takes this courier for the first and only one.
            os.kill(os.getpid(), signal.SIGKILL)
        rank = ranks[position()]
        self.segment = open_as_courier(run, rank)
        self.record = self.segment.courier
        with contextlib.suppress(JobError):  # a rank has just been given up
            for number in {open_to_read(run, other).worker.kind for other in ranks_of(run)} - {0}:
                kind_of(number).warm()
        self.enter(world)
        self.wait_until(lambda: self.segment.in_job)
        sharded = ShardedMemory(self.segment) if self.segment.worker.slices else None
        self.memory = SharedMemory(self.segment) if sharded is None else sharded
        self.log = Log(folder, f"courier-{rank}")
        self.faults = Faults(rank, folder, self.log, lambda: self.epoch, self.segment.agent.worker.number)
        self.port = WorkerPort(self.segment, self.strike, placing)
        if sharded is not None:
            self.port = SlicePort(self.segment, sharded, self.strike)
        if placing is not None:
            placing.halfway = lambda: self.strike(Point.RELAY)
        self.watch = Stopwatch(self.repaired)
        self._single = -1
        """How many slices had one copy in the last round; -1 before the first."""
        self.differed: Differed | None = None
        """What was written down of this worker's state when the members' states differed last."""
        self.port.differs = self.differs
        self._before: set[int] = set()
        """The members before the group was revoked."""

    def enter(self, world: int) -> None:
        """Wait until the couriers of the world before this one are gone."""
        record, agent = self.record, self.segment.agent

        def is_let_in() -> bool:
            # A courier of an abandoned world may come up after the one of the world that replaced that: what the later
            # world's has said must stay. It says so again and again, since both may be writing at the same moment.
            record.standby = max(record.standby, world)
            return agent.world >= world

        self.wait_until(is_let_in)
        self.end_with_world(world)
        self.segment.begin_job(agent.job)
        record.process, record.daemon = Identity.of(os.getpid()), Identity.of(self.parent.number)
        self.epoch, record.shrink = Epoch(agent.attempt, world), 0
        self._was = self.segment.epoch if record.done_world else self.epoch
        record.phase = CourierPhase.CARRYING
        record.world = world
        self.end_with_world(world)

    def wait_until(self, true: Callable[[], bool]) -> None:
        """Wait for what others do; without mpirun nobody will, as its launcher has given this world up or is dead."""
        while True:
            met = true()
            if self.parent.gone:  # looked at last: what has come true may be meant for the couriers of another launcher
                os.kill(os.getpid(), signal.SIGKILL)
            if met:
                break
            signal.alarm(COURIER_START)
            time.sleep(WORLD_POLL)
        signal.alarm(0)

    def end_with_world(self, world: int) -> None:
        """End if this world is over already; the agent may just not have seen this courier."""
        if self.segment.agent.world > world or self.segment.agent.cleared >= world:
            os.kill(os.getpid(), signal.SIGKILL)

    def run(self, *, repair: bool) -> None:
        """Carry sums until the job is over."""
        segment = self.segment
        formed = segment.agent.formed
        carrier, steps = self.sharded(repair=repair) if segment.worker.slices else self.plain(repair=repair)
        if formed:
            self.watch.failed(formed)
            self.watch.times[RepairPhase.REFORM.value] = time.time() - formed
            self.port.afresh = not repair
        carrier.drive(steps, self.before, self.watch.failed)
        self.port.side.finish()

    def over(self) -> bool:
        """Whether the worker's job is over, or another one."""
        return is_over(self.segment) or not self.segment.in_job

    def plain(self, *, repair: bool) -> tuple[Mpi, Steps]:
        """A member of a job in which every worker has the whole state, and who carries its operations out."""
        agent, lanes = self.segment.agent, self.segment.worker.lanes
        steps = run_member(
            self.memory, lanes, min(agent.wanted, lanes), attempt=agent.attempt, world=self.record.world,
            fresh=agent.fresh, repair=repair, hosts=self.hosts,
        )  # fmt: skip
        return Mpi(self.port, lanes, self.over), steps

    def sharded(self, *, repair: bool) -> tuple[Mpi, ShardedSteps]:
        """The same for a job in which updates are sharded."""
        agent, worker = self.segment.agent, self.segment.worker
        assert isinstance(self.memory, ShardedMemory) and isinstance(self.port, SlicePort)
        fills = max(FILLS, FILL_NUMBERS * worker.slices // max(worker.weights, 1))
        wanted = min(agent.wanted, worker.lanes)
        sharding = Sharding(worker.slices, worker.buddies, worker.lanes, wanted, fills, worker.measures)
        steps = run_sharded_member(
            self.memory, sharding, attempt=agent.attempt, world=self.record.world, fresh=agent.fresh, repair=repair,
            hosts=self.hosts,
        )  # fmt: skip
        return ShardedMpi(self.port, worker.lanes, worker.slices, agent.ranks, self.over), steps

    def before(self, operation: ShardedOperation) -> None:
        """Say what is being done: a repair that takes too long is cut short by a new world."""
        repair = isinstance(operation, (Revoke, Shrink, Gather, Enlist))
        self.enter_phase(CourierPhase.REPAIRING if repair else CourierPhase.CARRYING)
        if repair and self.parent.gone:
            # mpirun or its daemon is dead and all couriers end; one that continued would leave the others behind.
            os.kill(os.getpid(), signal.SIGKILL)
        self._count(operation)
        if isinstance(operation, Scatter):
            self.count_copies(operation)
        if isinstance(operation, Revoke):
            self._before = set(self.port.account.digests)
        if isinstance(operation, (Work, Prepare, Wait)):
            self.record.agreed = self.record.world
        self.watch.began(operation)
        point = POINTS.get(type(operation))
        if isinstance(operation, Cast):
            point = Point.ROLL_FORWARD if operation.what is Payload.TOTAL else Point.STATE
        if point is not None:
            self.strike(point)

    def count_copies(self, scatter: Scatter) -> None:
        """Write down how many slices have one copy, where that has changed: the courier of the first worker does."""
        single = sum(len(ranks) == 1 for ranks in scatter.takers) if self.segment.worker.buddies else 0
        before, self._single = self._single, single
        began = before < 0 and self.epoch[1:] == (1, 0)  # then all have as many as they should, or nobody else is here
        if single == before or (began and not single):
            return
        if min(rank for ranks in scatter.takers for rank in ranks) == self.segment.rank:
            round, every = scatter.round.number, len(scatter.takers)
            self.log.write(SingleCopies(epoch=self.epoch, rank=self.segment.rank, round=round, slices=single, of=every))

    def _count(self, operation: ShardedOperation) -> None:
        """Keep two epochs: this courier's, as its members have agreed on it, and the one before the last failure."""
        if isinstance(operation, Enlist):
            self.epoch = self.epoch._replace(shrink=operation.shrink)
            self.record.shrink = operation.shrink
        if isinstance(operation, Wait) or (isinstance(operation, WORKING) and not self.watch.noticed):
            self._was = self.epoch

    def enter_phase(self, phase: CourierPhase) -> None:
        """Each operation of a repair has its own time."""
        if phase is not CourierPhase.CARRYING:
            self.record.phase_since = time.monotonic()
        self.record.phase = phase

    def strike(self, point: Point) -> None:
        """Bring about the failure that a test asked for here."""
        self.faults.strike(point, self.segment.worker.step, self.segment.worker.turn)

    def differs(self) -> None:
        """The members' states differ: write down this worker's digests, so that another courier can report where."""
        state = self.port.state(self.memory.done)
        if state is not None:
            self.differed = write_down(self.log, self.epoch, self.segment.rank, self.segment.worker.step, state)

    def where(self) -> str:
        """The rest of a sentence about states that differ."""
        return where(self.differed, self.folder)

    def wait_for_world(self) -> None:
        """Say that the launcher has to form a new world, and wait for the end of this one."""
        self.enter_phase(CourierPhase.NEEDS_WORLD)
        while not self.parent.gone:
            time.sleep(WORLD_POLL)

    def repaired(self, noticed: float, times: dict[str, float]) -> None:
        """A repair is through."""
        active = self.port.account.digests
        self.log.write(
            Repaired(epoch=self.epoch, was=self._was, rank=self.segment.rank, round=self.memory.done, noticed=noticed,
                     times=times, active=sorted(active), joined=self._before < set(active))
        )  # fmt: skip
        self._was = self.epoch


def carry(courier: Courier, *, repair: bool) -> None:
    """Carry sums to the end of the job; where the worker can have no part in it any more, kill the worker."""
    segment: CourierSegment = courier.segment
    try:
        courier.run(repair=repair)
        return
    except Evicted as error:
        print_marked(f"{error}{courier.where()}; killing worker {segment.rank}")
        courier.log.write(
            Died(epoch=courier.epoch, what=Component.WORKER, how=How.EVICTED, rank=segment.rank,
                 process=segment.agent.worker.number, step=segment.worker.step)
        )  # fmt: skip
    except JobError as error:
        segment.files.write_error(segment.worker.step, str(error), "", mistake=True)
    except Divergence as error:
        why = f"{error}{courier.where()}"
        segment.files.write_error(segment.worker.step, why, why, mistake=False)
    except Lost as error:
        if not segment.worker.slices or not segment.courier.active:
            raise  # every worker that had the state is dead, and the launcher sees that too
        if is_halted(segment):
            raise Failure from None  # they were not needed any more, and nor is this courier
        why = f"{error}: resume the run from its last checkpoint"
        segment.files.write_error(segment.worker.step, why, why, mistake=False)
    except Cut as error:
        print_marked(f"{workers(error.ranks)} may be cut off from the others; waiting for the launcher")
        courier.wait_for_world()
        raise Failure from None
    segment.agent.worker.kill()
    raise Failure


def is_halted(segment: CourierSegment) -> bool:
    """Whether the run is being stopped: some workers hear of it, and are gone, before others."""
    until = time.monotonic() + TOGETHER
    while halt_of(segment) is None:
        if time.monotonic() > until:
            return False
        time.sleep(WORLD_POLL)
    return True
