"""What failed: everything that was written about one dead worker, courier, host or mpirun, and what it is called."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from meshmend.base.processes import signal_name
from meshmend.telemetry import UNKNOWN, Component, Died, Epoch, How, Repaired, Struck

Failure = Struck | Died
LAST = 1 << 62
"""More shrinks than any world has, and more worlds than any attempt."""
HOW = {
    How.COURIER_LOST: "lost its courier",
    How.CUT_OFF: "cut off",
}
"""Where the name is not the usual word."""


@dataclass
class Victim:
    """One thing that failed. Several writers may report it, at their own pace: chaos, a courier, the launcher."""

    events: list[Failure] = field(default_factory=list)

    @property
    def attempt(self) -> int:
        """The attempt in which it failed."""
        return self.events[0].epoch.attempt

    @property
    def member(self) -> bool:
        """Whether it took part in a world, so that its failure delays others."""
        return all(event.member for event in self.events if isinstance(event, Died))

    @property
    def steps(self) -> list[int]:
        """The steps in which it was seen to fail, as far as they are known."""
        return [event.step for event in self.events if event.step != UNKNOWN]

    @property
    def begin(self) -> float:
        """When this was first seen."""
        return min(event.time for event in self.events)

    def last_seen(self, repairs: Iterable[Repaired]) -> Epoch:
        """Return the last epoch that it was part of, according to the reports and the repairs of its world."""
        epoch = max(event.epoch for event in self.events)
        if any(event.what in (Component.MPIRUN, Component.LAUNCHER) for event in self.events):
            return epoch._replace(shrink=LAST)  # no shrink helps: a new world is formed
        ranks = {rank for event in self.events for rank in (event.rank, *getattr(event, "ranks", ()))}
        alive = [r.epoch for r in repairs if r.epoch[:2] == epoch[:2] and ranks & {*r.active}]
        return max([epoch, *alive])

    def words(self) -> str:
        """Name a victim, as in "worker 2 SIGKILL"; an injected failure says more than its observed effect."""
        struck = [event for event in self.events if isinstance(event, Struck)]
        died = [event for event in self.events if isinstance(event, Died)]
        died.sort(key=lambda event: (event.how.value, event.time))
        if not struck:
            return f"{_name(died[0])} {how(died[0])}"
        first = min(struck, key=lambda event: event.time)
        if first.fault not in ("kill", first.what.name.lower()):
            return f"{_name(first)} {first.fault}"
        same = [event for event in died if event.what == first.what]
        return f"{_name(first)} {how(same[0])}" if same else _name(first)


def key_of(event: Failure) -> tuple[object, ...]:
    """What an event is about: a worker by its process, which its replacement does not share."""
    if event.what in (Component.WORKER, Component.COURIER):
        return event.epoch.attempt, event.rank, event.process or ("world", event.epoch.world)
    host = event.host if isinstance(event, Died) else ""
    return *event.epoch[:2], event.what, host, event.rank


def _name(event: Failure) -> str:
    what = event.what.name.lower()
    if isinstance(event, Died) and event.host:
        return f"{what} {event.host}"
    if event.rank == UNKNOWN:
        return what
    own = event.what in (Component.WORKER, Component.COURIER)
    return f"{what} {event.rank}" if own else f"{what} of worker {event.rank}"


def how(event: Died) -> str:
    """Say how something died, as in "SIGKILL"."""
    match event.how:
        case How.EXIT:
            return f"exit status {event.value}"
        case How.SIGNAL:
            return signal_name(event.value)
        case how:
            return HOW.get(how, how.name.lower().replace("_", " "))
