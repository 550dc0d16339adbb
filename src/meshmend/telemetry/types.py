"""The events of a run. Writers: launcher, couriers, workers, and programs that cause failures on purpose.

`epoch` is the epoch that the writer was in or, where the event is about another process, in which that process was
last seen. Enums are written by their names, so the JSON can be read by people.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, fields
from enum import Enum, auto
from typing import Annotated, Any, ClassVar

from meshmend.base.schema import Count, Range, Real, Rule, field_values, shown
from meshmend.errors import FormatError
from meshmend.telemetry.epoch import Epoch

UNKNOWN = -1
"""In the place of a rank or a step that the writer does not know."""
MOST_RANKS = 1 << 16
"""More than a run can have."""
Step = Annotated[int, Range(UNKNOWN, 1 << 53)]
Rank = Annotated[int, Range(UNKNOWN, MOST_RANKS)]
By = Annotated[
    list[list[int]],
    Rule("pairs of [rank, number of lanes]", lambda by: all(len(run) == 2 and min(run) >= 0 for run in by)),
]
"""Which rank computed which lanes, in order of the lanes: pairs of [rank, number of lanes]."""


class Component(Enum):
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
    """A worker: its courier died and the others have continued without it."""
    CUT_OFF = auto()
    """A worker: it was on the smaller side of a network partition."""
    STOPPED = auto()
    """Mpirun: it or a courier was stopped, so another one took its place."""
    LATE = auto()
    """A world of couriers never came up."""
    LOST = auto()
    """It is gone, and the cause is unknown."""
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
    """The first world of a job, in an attempt."""
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
    omitted: ClassVar[tuple[str, ...]] = ()
    """Fields that are not written where they are empty."""
    time: float = field(default_factory=time.time)
    epoch: Epoch

    def __init_subclass__(cls) -> None:
        Event.kinds[cls.__name__] = cls

    def values(self) -> dict[str, Any]:
        """The event as an object of JSON, from which `parse` makes the event again."""
        found: dict[str, Any] = {"kind": type(self).__name__}
        for entry in fields(self):
            if entry.init and (getattr(self, entry.name) or entry.name not in self.omitted):
                value = getattr(self, entry.name)
                found[entry.name] = value.name if isinstance(value, Enum) else value
        return found

    def line(self) -> str:
        """The event as a line of JSON."""
        return json.dumps(self.values(), separators=(",", ":"))


@dataclass(frozen=True, kw_only=True)
class Began(Event):
    """Launcher: a run begins (attempt 0), is resumed from a checkpoint (1, 2, …), or is attached to."""

    workers: Count
    spares: Count
    on_failure: str
    """The name of the policy."""
    attached: bool = False
    restarted: bool = False
    """The policy `checkpoint`: after a failure, this launcher has restarted the whole job."""


@dataclass(frozen=True, kw_only=True)
class Formed(Event):
    """Launcher: a world of couriers was entered; its epoch is (attempt, world, 0)."""

    ranks: list[Rank]
    why: Why
    joined: list[Rank] = field(default_factory=list)
    """The ranks that join, if that is the reason."""
    job: Annotated[int, Range(1, 1 << 53)] = 1
    """Which job of the script the world belongs to."""


@dataclass(frozen=True, kw_only=True)
class Died(Event):
    """Launcher: something died. Courier: its worker is evicted. `epoch` is that in which it was last seen."""

    what: Component
    how: How
    value: int = 0
    """The exit status or the number of the signal."""
    rank: Rank = UNKNOWN
    process: int = 0
    """The process id of the rank's worker, even if its courier died: it tells a worker from its replacement."""
    step: Step = UNKNOWN
    """The step that the worker was in; of a worker that was no member, the step that the members were in."""
    member: bool = True
    """Whether it had joined a world: if not, its death delays no other worker."""
    host: str = ""
    """The name of a host that died."""
    ranks: list[Rank] = field(default_factory=list)
    """The ranks that died with a host."""


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """Launcher: a worker was started."""

    rank: Rank
    process: int
    host: str = ""


@dataclass(frozen=True, kw_only=True)
class Halting(Event):
    """Launcher: the run is being halted; a launcher that attaches meanwhile continues the halt."""

    reason: str
    """The name of the reason's type, in `run/supervisor/messages.py`."""
    details: dict[str, Any] = field(default_factory=dict)
    """Its fields."""
    writer: Rank = UNKNOWN
    """The rank that writes the last checkpoint; unknown: no worker can."""


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
    rank: Rank
    round: int
    """The round that was interrupted."""
    noticed: float
    """When this courier noticed the failure (seconds since 1970)."""
    times: dict[str, float]
    """Seconds of each phase that took place: revoke, shrink, re-form, exchange, roll forward, state, recompute, first
    commit."""
    active: list[Rank]
    """The active ranks of the new membership."""
    joined: bool = False
    """Whether nobody is missing: members that had waited for the end of a step have joined, and nothing failed."""


@dataclass(frozen=True, kw_only=True)
class SingleCopies(Event):
    """From this round on, so many slices have one copy alone.

    Written by the courier of the first worker of a sharded job, and by the first worker itself for embedding tables.
    """

    rank: Rank
    round: int
    slices: Count
    of: Count
    """How many slices there are."""


@dataclass(frozen=True, kw_only=True)
class Differed(Event):
    """Courier: the states of the members differ before `step`; this is the digest of each leaf of its worker's."""

    rank: Rank
    step: Step
    leaves: dict[str, str]
    """In the order of the state."""


@dataclass(frozen=True, kw_only=True)
class Opened(Event):
    """Worker: it has opened a job over this data and takes part from `step` on."""

    rank: Rank
    step: Step
    size: Count
    batch: Count
    lanes: Annotated[int, Range(0, MOST_RANKS)]
    seed: Count
    reduction: str
    job: Annotated[int, Range(1, 1 << 53)] = 1
    """Which job of the script it is; every ledger line that this worker writes from now on belongs to it."""
    in_order: bool = False
    """Whether samples are taken in order, like those of a stream, and not shuffled."""


@dataclass(frozen=True, kw_only=True)
class Committed(Event):
    """Worker: a step is done; `epoch` is that of the round whose sum was committed. One line of the ledger."""

    omitted = ("more",)
    rank: Rank
    step: Step
    by: By
    digest: str
    """The digest of the state after the step."""
    metrics: dict[str, Real] = field(default_factory=dict)
    stall: float = 0.0
    """Seconds that this worker waited for input in the step."""
    more: list[By] = field(default_factory=list)
    """As `by`, for the sums of the step after the first one."""


@dataclass(frozen=True, kw_only=True)
class Skipped(Event):
    """Worker: a step's sum was not finite, and the user asked to skip such steps. One line of the ledger."""

    rank: Rank
    step: Step
    by: By
    why: str


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """Worker: an evaluation is done; every worker that took part writes the same. One line of the ledger."""

    rank: Rank
    step: Step
    """Steps that were done before it."""
    round: Count
    """The last round of its exchange: what tells it from other evaluations of the same attempt."""
    size: Count
    """Samples of the data set."""
    chunk: Annotated[int, Range(1, 1 << 53)]
    """Samples of a chunk; the last one may be smaller."""
    by: By
    """Which rank computed which chunks: pairs of [rank, number of chunks]."""
    digest: str
    """The digest of the result."""


@dataclass(frozen=True, kw_only=True)
class Saved(Event):
    """Worker: a checkpoint of the state before `step` is on disk."""

    step: Step
    path: str
    seconds: float
    nbytes: Count


@dataclass(frozen=True, kw_only=True)
class Raised(Event):
    """Worker: the user's script raised an exception."""

    rank: Rank
    step: Step
    error: str
    """Its last line."""
    trace: str


@dataclass(frozen=True, kw_only=True)
class Struck(Event):
    """Chaos, a test or a demo: it is about to cause this failure on purpose."""

    what: Component
    fault: str
    """The fault's name in the registry of faults."""
    rank: Rank = UNKNOWN
    process: int = 0
    """As in `Died`."""
    step: Step = UNKNOWN
    """The step that the worker is in."""
    point: str = ""


def parse(values: Any) -> Event:
    """The event that a JSON object holds; what holds none is a `FormatError`. Fields of later versions are ignored."""
    if not isinstance(values, dict) or not isinstance(values.get("kind"), str) or values["kind"] not in Event.kinds:
        raise FormatError(f"it is {shown(values)} without a known kind of event")
    kind = Event.kinds[values["kind"]]
    return kind(**field_values(kind, values, others=True))
