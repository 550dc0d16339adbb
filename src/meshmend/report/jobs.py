"""The jobs of a run, if its script has several, one after another: each has its own ledger and incidents.

Every world belongs to one job, and worlds are numbered across jobs, so the epoch of an event identifies its job.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from meshmend.telemetry import Ended, Epoch, Event, Events, Formed


@dataclass(frozen=True)
class Worlds:
    """Which job each world was for."""

    starts: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """By attempt: a world and its job, in order."""

    @classmethod
    def of(cls, events: Iterable[Event]) -> Worlds:
        """As the launcher has recorded it; if it has not, there is one job."""
        return cls().with_(events)

    def with_(self, events: Iterable[Event]) -> Worlds:
        """The same with more worlds."""
        found = {attempt: {*worlds} for attempt, worlds in self.starts.items()}
        for event in events:
            if isinstance(event, Formed):
                found.setdefault(event.epoch.attempt, set()).add((event.epoch.world, event.job))
        return Worlds({attempt: sorted(worlds) for attempt, worlds in found.items()})

    @property
    def jobs(self) -> list[int]:
        """Their numbers."""
        return sorted({job for worlds in self.starts.values() for _, job in worlds}) or [1]

    def job_of(self, epoch: Epoch) -> int:
        """Return the job of an epoch; before the first world of an attempt, the job that the attempt begins with."""
        worlds = self.starts.get(epoch.attempt)
        if worlds is None:
            return self.jobs[-1]
        return worlds[max(0, bisect_right(worlds, (epoch.world, 1 << 62)) - 1)][1]


@dataclass(frozen=True)
class JobEvents:
    """The events of one job, read again each time."""

    events: Collection[Event] | Events
    worlds: Worlds
    job: int

    def __iter__(self) -> Iterator[Event]:
        for event in self.events:
            if isinstance(event, Ended) or self.worlds.job_of(event.epoch) == self.job:
                yield event


def jobs(events: Iterable[Event]) -> dict[int, Collection[Event] | Events | JobEvents]:
    """The events of each job, by its number."""
    kept = events if isinstance(events, Collection | Events) else list(events)
    worlds = Worlds.of(replace(kept, writer="launcher") if isinstance(kept, Events) else kept)
    if len(worlds.jobs) == 1:
        return {worlds.jobs[0]: kept}
    return {job: JobEvents(kept, worlds, job) for job in worlds.jobs}
