"""The events of a run. Writers: launcher, couriers, workers, and programs that cause failures on purpose.

`epoch` is the epoch that the writer was in or, where the event is about another process, in which that process was
last seen. Enums are written by their names, so the JSON can be read by people.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from enum import Enum, auto
from functools import cache
from typing import Any, ClassVar, get_type_hints

from meshmend.telemetry.epoch import Epoch

UNKNOWN = -1
"""In the place of a rank or a step that the writer does not know."""


class Part(Enum):
    """What can die."""

    WORKER = auto()
    COURIER = auto()
    MPIRUN = auto()
    HOST = auto()
    LAUNCHER = auto()
    AGENT = auto()


class How(Enum):
    """How something died, the most telling first: if two writers report one death, the first of these explains it."""

    EVICTED = auto()
    """A worker: its state differed from the majority's, or was too far behind."""
    HANG = auto()
    """A worker: it made no progress while others waited for it, so it was killed."""
    COURIER_LOST = auto()
    """A worker: its courier died and the others have gone on without it."""
    CUT_OFF = auto()
    """A worker: it was on the smaller side of a network partition."""
    STOPPED = auto()
    """Mpirun: it or a courier was stopped, so another one took its place."""
    LATE = auto()
    """A world of couriers never came up."""
    LOST = auto()
    """It is gone, and nobody saw how."""
    HALTED = auto()
    """A worker: it did not stop in time when the run was halted."""
    RESTARTED = auto()
    """A worker: its rank, or the whole job, was started again."""
    EXIT = auto()
    """It exited by itself; `value` is its status."""
    SIGNAL = auto()
    """It was killed by a signal; `value` is the signal's number."""


class Why(Enum):
    """Why a world was formed."""

    BEGIN = auto()
    """The first world of an attempt."""
    JOIN = auto()
    """Workers join, to replace dead ones; nothing failed."""
    MPIRUN_LOST = auto()
    STOPPED = auto()
    """Mpirun or a courier was stopped."""
    STUCK = auto()
    """The couriers could not agree by themselves."""
    HOST_LOST = auto()
    PARTITION = auto()
    """The network was partitioned."""
    RESTART = auto()
    """The policy `restart`: all workers go back to the last commit."""
    ATTACHED = auto()
    """Another launcher took over."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all events; `time` is in seconds since 1970."""

    kinds: ClassVar[dict[str, type[Event]]] = {}
    time: float = field(default_factory=time.time)
    epoch: Epoch

    def __init_subclass__(cls) -> None:
        Event.kinds[cls.__name__] = cls

    def values(self) -> dict[str, Any]:
        """The event as an object of JSON, from which `parse` makes the event again."""
        found = {name: value.name if isinstance(value, Enum) else value for name, value in asdict(self).items()}
        return {"kind": type(self).__name__, **found}

    def line(self) -> str:
        """The event as a line of JSON."""
        return json.dumps(self.values(), separators=(",", ":"))


@dataclass(frozen=True, kw_only=True)
class Began(Event):
    """Launcher: a run begins (attempt 0), is resumed from a checkpoint (1, 2, …), or is attached to."""

    workers: int
    spares: int
    on_failure: str
    """The name of the policy."""
    attached: bool = False
    restarted: bool = False
    """The policy `checkpoint`: after a failure, this launcher has restarted the whole job."""


@dataclass(frozen=True, kw_only=True)
class Formed(Event):
    """Launcher: a world of couriers was let in; its epoch is (attempt, world, 0)."""

    ranks: list[int]
    why: Why
    joined: list[int] = field(default_factory=list)
    """The ranks that join, where that is why."""


@dataclass(frozen=True, kw_only=True)
class Died(Event):
    """Launcher: something died. Courier: its worker is evicted. `epoch` is that in which it was last seen."""

    what: Part
    how: How
    value: int = 0
    """The exit status or the number of the signal."""
    rank: int = UNKNOWN
    process: int = 0
    """The process id of the rank's worker, also where its courier died: it tells a worker from its replacement."""
    step: int = UNKNOWN
    """The step that the worker was in; of a worker that was no member, the step that the members were in."""
    member: bool = True
    """Whether it had joined a world: if not, its death delays nobody."""
    host: str = ""
    """The name of a host that died."""
    ranks: list[int] = field(default_factory=list)
    """The ranks that died with a host."""


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """Launcher: a worker was started."""

    rank: int
    process: int
    host: str = ""


@dataclass(frozen=True, kw_only=True)
class Ended(Event):
    """Launcher: the run is over."""

    status: int
    why: str = ""
    """For people: why the run was halted."""


@dataclass(frozen=True, kw_only=True)
class Repaired(Event):
    """Courier: how long it took from a failure to the next round's total; `epoch` is that of the new membership."""

    was: Epoch
    """The epoch before the failure; for a rank that joins, the one it joins in."""
    rank: int
    round: int
    """The round that was interrupted."""
    noticed: float
    """When this courier noticed the failure (seconds since 1970)."""
    times: dict[str, float]
    """Seconds of each phase that took place: revoke, shrink, re-form, exchange, roll forward, state, recompute, first
    commit."""
    active: list[int]
    """The active ranks of the new membership."""


@dataclass(frozen=True, kw_only=True)
class Opened(Event):
    """Worker: it has opened a job over this data and takes part from `step` on."""

    rank: int
    step: int
    size: int
    batch: int
    lanes: int
    seed: int
    reduction: str


@dataclass(frozen=True, kw_only=True)
class Committed(Event):
    """Worker: a step is done; `epoch` is that of the round whose sum was committed. One line of the ledger."""

    rank: int
    step: int
    by: list[list[int]]
    """Which rank computed which lanes, in order of the lanes: pairs of [rank, number of lanes]."""
    digest: str
    """The digest of the state after the step."""
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Skipped(Event):
    """Worker: a step's sum was not finite, and the user asked to skip such steps. One line of the ledger."""

    rank: int
    step: int
    by: list[list[int]]
    why: str


@dataclass(frozen=True, kw_only=True)
class Saved(Event):
    """Worker: a checkpoint of the state before `step` is on disk."""

    step: int
    path: str
    seconds: float
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Raised(Event):
    """Worker: the user's script raised an exception."""

    rank: int
    step: int
    error: str
    """Its last line."""
    trace: str


@dataclass(frozen=True, kw_only=True)
class Struck(Event):
    """Chaos, a test or a demo: it is about to cause this failure on purpose."""

    what: Part
    fault: str
    """The fault's name in the registry of faults."""
    rank: int = UNKNOWN
    process: int = 0
    """As in `Died`."""
    step: int = UNKNOWN
    """The step that the worker is in."""
    point: str = ""


def parse(values: dict[str, Any]) -> Event:
    """The event that a JSON object holds; fields that a later version has added are ignored."""
    kind = Event.kinds[values["kind"]]
    readers = _readers(values["kind"])
    return kind(**{name: readers[name](value) for name, value in values.items() if name in readers})


@cache
def _readers(name: str) -> dict[str, Callable[[Any], Any]]:
    """For each field of a kind of event, what turns its JSON into its value."""
    kind = Event.kinds[name]
    hints = get_type_hints(kind)
    return {entry.name: _reader(hints[entry.name]) for entry in fields(kind)}


def _reader(hint: Any) -> Callable[[Any], Any]:
    if hint is Epoch:
        return lambda value: Epoch(*(int(part) for part in value))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda value: hint[value]
    return lambda value: value
