"""A run on this host as an outsider sees it: its members, their processes, and requests for failures.

For `meshmend chaos`, the demo, benchmarks and tests, which read no records; and for launchers that take over a run.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from meshmend.base.processes import Identity
from meshmend.errors import JobError, SegmentGone
from meshmend.job.shm.files import ranks_of
from meshmend.job.shm.mailbox import is_over
from meshmend.job.shm.records import FlipWanted
from meshmend.job.shm.segment import Segment, open_for_chaos, open_to_read
from meshmend.telemetry import Epoch


@dataclass(frozen=True)
class Member:
    """A snapshot of one rank of a run."""

    run: str
    rank: int
    process: Identity
    """Its worker."""
    carrier: Identity
    """Its courier; the identity of no process if none works there."""
    daemon: int
    """The parent of the courier: mpirun, or its daemon on this host."""
    mpirun: int
    agent: int
    step: int
    epoch: Epoch
    """The membership that it is in."""
    active: bool
    """Whether it takes part in rounds, and the job is not over."""

    @property
    def worker(self) -> int:
        """The number of its worker's process."""
        return self.process.number

    @property
    def courier(self) -> int:
        """The number of its courier's process; 0 if none works there."""
        return self.carrier.number

    @property
    def alive(self) -> bool:
        """Whether its worker is."""
        return self.process.alive

    @property
    def has_courier(self) -> bool:
        """Whether its courier is alive."""
        return self.carrier.alive


def member(run: str, rank: int) -> Member | None:
    """One rank; None if it has no memory here."""
    try:
        return _member(open_to_read(run, rank))
    except SegmentGone:
        return None  # it has just ended


def members(run: str) -> list[Member]:
    """All ranks of a run that have memory on this host, in order."""
    return [found for rank in ranks_of(run) if (found := member(run, rank)) is not None]


def waiting(run: str) -> list[Identity]:
    """Return the workers of a run on this host that are alive, or may be."""
    found = []
    for rank in ranks_of(run):
        with contextlib.suppress(JobError):  # it has just been removed, or cannot be read
            found.append(open_to_read(run, rank).agent.worker)
    return [worker for worker in found if worker.alive or (worker.number and not worker.visible)]


def latest_attempt(run: str) -> int:
    """Return the latest attempt of which workers have left memory on this host, in this container; 0 if none has."""
    found = [0]
    for rank in ranks_of(run):
        with contextlib.suppress(JobError):
            agent = open_to_read(run, rank).agent
            found += [agent.attempt] if agent.worker.visible or not agent.worker.number else []
    return max(found)


def request_flip(run: str, rank: int) -> None:
    """Have a worker flip a bit of its state at its next commit."""
    open_for_chaos(run, rank).chaos.flip_wanted = FlipWanted()


def _member(segment: Segment) -> Member:
    agent, courier = segment.agent, segment.courier
    works = segment.has_courier()
    return Member(
        run=segment.run,
        rank=segment.rank,
        process=agent.worker,
        carrier=courier.process if works else Identity(),
        daemon=courier.daemon.number if works else 0,
        mpirun=agent.mpirun,
        agent=agent.owner.number,
        step=segment.worker.step,
        epoch=Epoch(agent.attempt, agent.world, courier.shrink),
        active=segment.in_job and courier.active and not is_over(segment),
    )
