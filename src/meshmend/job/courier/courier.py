"""One courier, from the start of its world to the end of the job: the MPI process that carries a worker's sums.

It keeps nothing to itself: parts, totals and progress lie in the memory it shares with the worker, so it can be
replaced at any moment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from meshmend.base.clocks import COURIER_START, WORLD_POLL
from meshmend.base.processes import Identity
from meshmend.errors import JobError
from meshmend.job.courier.differences import where, write_down
from meshmend.job.courier.mpi import Mpi, position
from meshmend.job.courier.timings import Phase as RepairPhase
from meshmend.job.courier.timings import Stopwatch
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
    Operation,
    Payload,
    Reduce,
    Revoke,
    Shrink,
    Wait,
    Work,
    run_member,
)
from meshmend.job.reduction.registry import kind_of
from meshmend.job.shm import CourierSegment, open_as_courier, open_to_read, ranks_of
from meshmend.job.shm.mailbox import is_over
from meshmend.job.shm.memory import SharedMemory
from meshmend.job.shm.records import Phase
from meshmend.job.transport.base import MeshPlans
from meshmend.telemetry import Died, Differed, Epoch, How, Log, Part, Repaired

POINTS: dict[type[Operation], Point] = {
    Reduce: Point.ALLREDUCE,
    Revoke: Point.REVOKE,
    Shrink: Point.SHRINK,
    Gather: Point.EXCHANGE,
    Enlist: Point.EXCHANGE,
}
"""Where a failure on purpose may strike: before these operations."""


class Courier:
    """One courier."""

    def __init__(
        self, run: str, folder: Path, hosts: list[list[int]], world: int, placing: MeshPlans | None = None
    ) -> None:
        self.hosts, self.folder, self.parent = hosts, folder, os.getppid()
        rank = [rank for host in hosts for rank in host][position()]
        self.segment = open_as_courier(run, rank)
        self.record = self.segment.courier
        with contextlib.suppress(JobError):  # a rank has just been given up
            for number in {open_to_read(run, other).worker.kind for other in ranks_of(run)} - {0}:
                kind_of(number).warm()
        self.enter(world)
        self.wait_until(lambda: self.segment.in_job)
        self.memory = SharedMemory(self.segment)
        self.log = Log(folder, f"courier-{rank}")
        self.faults = Faults(rank, folder, self.log, lambda: self.epoch, self.segment.agent.worker.number)
        self.port = WorkerPort(self.segment, self.strike, placing)
        if placing is not None:
            placing.halfway = lambda: self.strike(Point.RELAY)
        self.watch = Stopwatch(self.repaired)
        self.differed: Differed | None = None
        """What was written down of this worker's state when the members' states differed last."""
        self.port.differs = self.differs

    def enter(self, world: int) -> None:
        """Wait until the couriers of the world before this one are gone."""
        record, agent = self.record, self.segment.agent
        record.standby = world
        self.wait_until(lambda: agent.world >= world)
        self.end_with_world(world)
        self.segment.begin_job(agent.job)
        record.process, record.daemon = Identity.of(os.getpid()), Identity.of(self.parent)
        self.epoch, record.shrink = Epoch(agent.attempt, world), 0
        self._was = self.segment.epoch if record.done_world else self.epoch
        record.phase = Phase.CARRYING
        record.world = world
        self.end_with_world(world)

    def wait_until(self, true: Callable[[], bool]) -> None:
        """Wait for what others do; without mpirun nobody will, as its launcher has given this world up or is dead."""
        while not true():
            if os.getppid() != self.parent:
                os.kill(os.getpid(), signal.SIGKILL)
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
        lanes, formed = segment.worker.lanes, segment.agent.formed
        carrier = Mpi(self.port, lanes, lambda: is_over(segment) or not segment.in_job)
        if formed:
            self.watch.failed(formed)
            self.watch.times[RepairPhase.REFORM.value] = time.time() - formed
            self.port.afresh = not repair
        carrier.drive(
            run_member(
                self.memory,
                lanes,
                segment.agent.wanted,
                world=self.record.world,
                fresh=segment.agent.fresh,
                repair=repair,
                hosts=self.hosts,
            ),
            self.before,
            self.watch.failed,
        )
        self.port.side.finish()

    def before(self, operation: Operation) -> None:
        """Say what is being done: a repair that takes too long is cut short by a new world."""
        repair = isinstance(operation, (Revoke, Shrink, Gather, Enlist))
        self.enter_phase(Phase.REPAIRING if repair else Phase.CARRYING)
        if repair and os.getppid() != self.parent:
            # mpirun or its daemon is dead and all couriers end; one that continued would leave the others behind.
            os.kill(os.getpid(), signal.SIGKILL)
        self._count(operation)
        if isinstance(operation, (Work, Wait)):
            self.record.agreed = self.record.world
        self.watch.began(operation)
        point = POINTS.get(type(operation))
        if isinstance(operation, Cast):
            point = Point.ROLL_FORWARD if operation.what is Payload.TOTAL else Point.STATE
        if point is not None:
            self.strike(point)

    def _count(self, operation: Operation) -> None:
        """Keep two epochs: this courier's, as its members have agreed on it, and the one before the last failure."""
        if isinstance(operation, Enlist):
            self.epoch = self.epoch._replace(shrink=operation.shrink)
            self.record.shrink = operation.shrink
        if isinstance(operation, Wait) or (isinstance(operation, (Work, Reduce)) and not self.watch.noticed):
            self._was = self.epoch

    def enter_phase(self, phase: Phase) -> None:
        """Each operation of a repair has its own time."""
        if phase is not Phase.CARRYING:
            self.record.phase_since = time.monotonic()
        self.record.phase = phase

    def strike(self, point: Point) -> None:
        """Bring about the failure that a test asked for here."""
        self.faults.strike(point, self.segment.worker.step)

    def differs(self) -> None:
        """The members' states differ: write down what this worker's is, for whoever has to say where."""
        state = self.port.state(self.memory.done)
        self.differed = write_down(self.log, self.epoch, self.segment.rank, self.segment.worker.step, state)

    def where(self) -> str:
        """The rest of a sentence about states that differ."""
        return where(self.differed, self.folder)

    def wait_for_world(self) -> None:
        """Say that the launcher has to form a new world, and wait for the end of this one."""
        self.enter_phase(Phase.NEEDS_WORLD)
        while os.getppid() == self.parent:
            time.sleep(WORLD_POLL)

    def repaired(self, noticed: float, times: dict[str, float]) -> None:
        """A repair is through."""
        self.log.write(
            Repaired(epoch=self.epoch, was=self._was, rank=self.segment.rank, round=self.memory.done, noticed=noticed,
                     times=times, active=sorted(self.port.account.digests))
        )  # fmt: skip
        self._was = self.epoch


def carry(courier: Courier, *, repair: bool) -> None:
    """Carry sums to the end of the job; where the worker can have no part in it any more, kill the worker."""
    segment: CourierSegment = courier.segment
    try:
        courier.run(repair=repair)
        return
    except Evicted as error:
        print(f"meshmend: {error}{courier.where()}; it is ended", file=sys.stderr, flush=True)
        courier.log.write(
            Died(epoch=courier.epoch, what=Part.WORKER, how=How.EVICTED, rank=segment.rank,
                 process=segment.agent.worker.number, step=segment.worker.step)
        )  # fmt: skip
    except JobError as error:
        segment.files.write_error(segment.worker.step, str(error), "", mistake=True)
    except Divergence as error:
        why = f"{error}{courier.where()}"
        segment.files.write_error(segment.worker.step, why, why, mistake=False)
    except Cut as error:
        print(f"meshmend: {error}: they wait", file=sys.stderr, flush=True)
        courier.wait_for_world()
        raise Failure from None
    segment.agent.worker.kill()
    raise Failure
