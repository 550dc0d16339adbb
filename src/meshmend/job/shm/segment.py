"""One rank's shared memory, as each of the processes around it may use it.

    open_as_agent    writes the agent's record       open_as_worker   writes the worker's
    open_as_courier  writes the courier's            open_for_chaos   writes requests for failures
    open_to_read     writes nothing

All of them read everything. What must outlive a courier, an agent or the launcher is here. An agent and a worker are
present in their run from then on (presence.py); a courier, which is replaceable, need not be.
"""

from __future__ import annotations

from pathlib import Path

from meshmend.errors import JobError
from meshmend.job.protocol import NEVER
from meshmend.job.shm.buffers import Buffers
from meshmend.job.shm.control import Control, attach, create
from meshmend.job.shm.doorbell import Doorbell
from meshmend.job.shm.files import RankFiles
from meshmend.job.shm.home import free, too_small
from meshmend.job.shm.presence import enter
from meshmend.job.shm.records import (
    AgentRecord,
    Assigned,
    ChaosRecord,
    Copied,
    CourierRecord,
    Held,
    Slices,
    WorkerRecord,
    WritableAgentRecord,
    WritableChaosRecord,
    WritableCourierRecord,
    WritableWorkerRecord,
)
from meshmend.telemetry import Epoch

LEAST = 1 << 20
"""Bytes of shared memory that must be free for a rank: with less, mpirun itself fails."""


class Segment:
    """A rank's shared memory; its records can be read."""

    agent: AgentRecord
    worker: WorkerRecord
    courier: CourierRecord
    chaos: ChaosRecord

    def __init__(self, files: RankFiles, control: Control) -> None:
        self.run, self.rank, self.files = files.run, files.rank, files
        self.birth = control.birth
        """Distinguishes it from the memory of the rank's next worker."""
        self.agent = AgentRecord(control.words_of(AgentRecord))
        self.worker = WorkerRecord(control.words_of(WorkerRecord))
        self.courier = CourierRecord(control.words_of(CourierRecord))
        self.chaos = ChaosRecord(control.words_of(ChaosRecord))
        self.buffers = Buffers(files, self.worker)
        self.worker_bell = Doorbell(files.path("worker"))
        self.courier_bell = Doorbell(files.path("courier"))

    @property
    def epoch(self) -> Epoch:
        """The membership that made the last total."""
        return Epoch(self.agent.attempt, self.courier.done_world, self.courier.done_shrink)

    @property
    def state_made(self) -> tuple[int, int, int]:
        """The last round that the state contains, and the world and shrink of the group that made its total."""
        courier = self.courier
        made = courier.odd_made if courier.done % 2 else courier.even_made
        return courier.met if courier.met[0] == courier.done else made

    @property
    def in_job(self) -> bool:
        """Whether the courier's record is about the job that the worker is in."""
        return self.courier.job == self.worker.ready

    def has_courier(self) -> bool:
        """Whether a courier works here, or did until it died, and its world has not been cleared."""
        return self.courier.world > self.agent.cleared


class AgentSegment(Segment):
    """A rank's shared memory in the hands of the agent."""

    agent: WritableAgentRecord

    def __init__(self, files: RankFiles, control: Control) -> None:
        super().__init__(files, control)
        self.agent = WritableAgentRecord(control.words_of(AgentRecord, writable=True))


class WorkerSegment(Segment):
    """A rank's shared memory in the hands of the worker."""

    worker: WritableWorkerRecord

    def __init__(self, files: RankFiles, control: Control) -> None:
        super().__init__(files, control)
        self.worker = WritableWorkerRecord(control.words_of(WorkerRecord, writable=True))


class CourierSegment(Segment):
    """A rank's shared memory in the hands of the courier."""

    courier: WritableCourierRecord

    def __init__(self, files: RankFiles, control: Control) -> None:
        super().__init__(files, control)
        self.courier = WritableCourierRecord(control.words_of(CourierRecord, writable=True))

    def begin_job(self, job: int) -> None:
        """Forget what an earlier courier has published about another job; valid only when `job` is written."""
        record = self.courier
        if record.job != job:
            record.active = record.given = record.over = False
            record.assigned, record.copied = Assigned(NEVER, ()), Copied(NEVER, -1)
            record.done_world = record.done_shrink = 0
            record.even_made = record.odd_made = record.group = NEVER, 0, 0
            record.totals = record.met = record.came = record.joined = NEVER, 0, 0
            record.held_even, record.held_odd, record.leaving = Held(0, ()), Held(0, ()), False
            record.update_wanted, record.copies_wanted = NEVER, Slices(())
            record.even_where = record.odd_where = NEVER
            record.done = NEVER
            record.job = job


class ChaosSegment(Segment):
    """A rank's shared memory in the hands of `meshmend chaos`."""

    chaos: WritableChaosRecord

    def __init__(self, files: RankFiles, control: Control) -> None:
        super().__init__(files, control)
        self.chaos = WritableChaosRecord(control.words_of(ChaosRecord, writable=True))


def create_as_agent(run: str, rank: int) -> AgentSegment:
    """Create a rank's shared memory for a new worker; removes what was there before."""
    files = RankFiles(run, rank, enter(run, make=True))
    files.remove()
    if free() < LEAST:
        raise JobError(f"rank {rank} of run {run!r} {too_small(LEAST)}")
    for owner in ("worker", "courier"):
        Doorbell(files.path(owner)).make()
    return AgentSegment(files, create(files))


def open_as_agent(run: str, rank: int) -> AgentSegment:
    """In the agent that takes over from another one."""
    files = RankFiles(run, rank, enter(run))
    return AgentSegment(files, attach(files, writable=True))


def open_as_worker(run: str, rank: int) -> WorkerSegment:
    """In the worker."""
    files = RankFiles(run, rank, enter(run))
    return WorkerSegment(files, attach(files, writable=True))


def open_as_courier(run: str, rank: int) -> CourierSegment:
    """In the courier."""
    files = RankFiles(run, rank)
    return CourierSegment(files, attach(files, writable=True))


def open_for_chaos(run: str, rank: int) -> ChaosSegment:
    """In `meshmend chaos`."""
    files = RankFiles(run, rank)
    return ChaosSegment(files, attach(files, writable=True))


def open_to_read(run: str, rank: int, folder: Path | None = None) -> Segment:
    """In any process that only looks: a neighbour's courier, the launcher, a test; `folder`: the run's, if known."""
    files = RankFiles(run, rank, folder)
    return Segment(files, attach(files, writable=False))
