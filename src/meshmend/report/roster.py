"""The workers of a run as its events tell: the state of each rank, where it is, and what it computes.

    DUE ── Started ──► STARTING ── Formed ──► STANDBY ── Opened, Repaired ──► ACTIVE ── Ended ──► FINISHED or STOPPED
                           ▲                     │                              │
                           └────── Started ── DEAD ◄──────────── Died ──────────┘

What a rank is doing at this moment only its host knows; this is what the run's folder holds, and reading it touches
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from meshmend.report.victims import how
from meshmend.telemetry import (
    Began,
    Committed,
    Component,
    Died,
    Ended,
    Epoch,
    Event,
    Formed,
    Opened,
    Repaired,
    Started,
    Steps,
)


class Condition(Enum):
    """What a rank was last seen doing."""

    DUE = auto()
    """It is expected, and has not been started yet."""
    STARTING = auto()
    STANDBY = auto()
    """Its courier is in the world; its worker has no state yet: a spare or a newcomer."""
    ACTIVE = auto()
    DEAD = auto()
    FINISHED = auto()
    """The run ended with status 0."""
    STOPPED = auto()
    """The run ended otherwise."""


LIVE = {Condition.STARTING, Condition.STANDBY, Condition.ACTIVE}


@dataclass
class Worker:
    """One rank."""

    rank: int
    condition: Condition = Condition.DUE
    since: float = 0.0
    host: str = ""
    process: int = 0
    step: int = -1
    """The last step that it committed."""
    starts: int = 0
    deaths: int = 0
    last_death: str = ""
    """How it died last, such as "SIGKILL"."""


@dataclass
class Roster:
    """A fold over events, in their order."""

    workers: dict[int, Worker] = field(default_factory=dict)
    lanes: dict[int, int] = field(default_factory=dict)
    """How many lanes each rank computed in the newest step."""
    newest: tuple[Epoch, int] = Epoch(0), -1
    """The epoch and the number of that step."""

    def add(self, event: Event) -> None:
        """Take in an event."""
        match event:
            case Began(attached=False):
                for rank in {*range(event.workers + event.spares), *self.workers}:
                    self._move([rank], Condition.DUE, event.time)
            case Started():
                worker = self.worker(event.rank)
                worker.host, worker.process, worker.starts = event.host, event.process, worker.starts + 1
                self._move([event.rank], Condition.STARTING, event.time)
            case Formed():
                self._move(event.ranks, Condition.STANDBY, event.time, only={Condition.STARTING})
            case Opened():
                self._move([event.rank], Condition.ACTIVE, event.time, only=LIVE)
            case Repaired():
                self._move(event.active, Condition.ACTIVE, event.time, only={Condition.STANDBY})
            case Died(what=Component.WORKER | Component.COURIER | Component.HOST):
                self._died(event)
            case Ended():
                ended = Condition.STOPPED if event.status else Condition.FINISHED
                self._move(self.workers, ended, event.time, only=LIVE | {Condition.DUE})
            case Committed() | Steps():
                self._committed(event)
            case _:
                pass

    def worker(self, rank: int) -> Worker:
        """A rank, which may be new."""
        return self.workers.setdefault(rank, Worker(rank))

    def _move(self, ranks: Iterable[int], to: Condition, time: float, only: set[Condition] | None = None) -> None:
        for worker in map(self.worker, [*ranks]):
            if worker.condition is not to and (only is None or worker.condition in only):
                worker.condition, worker.since = to, time

    def _died(self, event: Died) -> None:
        for rank in [event.rank] if event.what is not Component.HOST else event.ranks:
            worker = self.worker(rank)
            if rank < 0 or (event.process and worker.process not in (0, event.process)):
                continue  # its replacement has been started already
            if worker.condition is not Condition.DEAD:
                worker.deaths += 1
                worker.last_death = "lost with its host" if event.what is Component.HOST else how(event)
            self._move([rank], Condition.DEAD, event.time)

    def _committed(self, event: Committed | Steps) -> None:
        last = event.end - 1 if isinstance(event, Steps) else event.step
        self.worker(event.rank).step = last
        if (event.epoch, last) >= self.newest:
            self.newest, self.lanes = (event.epoch, last), {}
            for rank, count in event.by:
                self.lanes[rank] = self.lanes.get(rank, 0) + count

    def count(self, condition: Condition) -> int:
        """How many workers are in a condition."""
        return sum(worker.condition is condition for worker in self.workers.values())
