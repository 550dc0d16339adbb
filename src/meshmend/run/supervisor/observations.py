"""What the supervisor is told at each turn: facts about workers, worlds and hosts, and answers to its questions.

Observations contain no decisions. Ranks on hosts whose agent cannot be reached are simply missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import NamedTuple

from meshmend.telemetry.epoch import Epoch


class CourierState(Enum):
    """A worker's courier, as its agent sees it."""

    NONE = auto()
    ALIVE = auto()
    STOPPED = auto()
    """The courier, or the mpirun process that it belongs to, is stopped and will not continue by itself."""
    LOST = auto()


class StopSignal(StrEnum):
    """A signal that asks a run to stop."""

    INTERRUPT = "SIGINT"
    TERMINATE = "SIGTERM"


class Cause(Enum):
    """Why the supervisor had a worker killed."""

    NONE = auto()
    """The supervisor did not: the worker ended by itself, or something else killed it."""
    HANG = auto()
    """It made no progress while others waited for it."""
    STOPPED = auto()
    """The same, because the process was stopped."""
    LOST_COURIER = auto()
    STATELESS = auto()
    """No worker is left that could give it the state."""
    NOT_OPENED = auto()
    """The run is being halted, and it had not opened its job yet."""
    HALTED = auto()
    """The run is being halted, and it did not stop in time."""
    RESTARTED = auto()
    CUT_OFF = auto()
    """It is on the smaller side of a network partition."""
    REPLACED = auto()
    """It was still alive when its rank was started again."""
    RUN_ENDED = auto()


HANGS = 2
"""The level from which on a worker hangs by its own pace."""


class Stillness(NamedTuple):
    """Whether a worker makes progress; true if it does not."""

    level: int = 0
    """0: it makes progress. 1: it has paused for longer than ever before. `HANGS`: it hangs; one more each time the
    pause doubles."""
    stopped: bool = False
    """It is a stopped process, and never continues by itself."""

    def __bool__(self) -> bool:
        return self.level > 0

    @property
    def hangs(self) -> bool:
        """Whether it has paused for so long that it may be killed."""
        return self.level >= HANGS


MOVES, PAUSES, STOPPED = Stillness(), Stillness(1), Stillness(HANGS, stopped=True)


@dataclass(frozen=True)
class WorkerError:
    """The exception that ended a worker."""

    step: int
    error: str
    """Its last line."""
    trace: str
    mistake: bool
    """Whether it is the user's mistake: then the message is enough, without a trace."""


@dataclass(frozen=True)
class RankSeen:
    """One rank, as its agent sees it."""

    rank: int
    process: int = 0
    """0: no worker has been started there."""
    attempt: int = 0
    """The attempt that its worker was started for."""
    status: int | None = None
    """The exit status of the worker, negative for a signal; None while it is alive."""
    cause: Cause = Cause.NONE
    error: WorkerError | None = None
    job: int = 1
    """The job of its script that it opened last; 1 before the first."""
    ready: bool = False
    """It has opened that job."""
    active: bool = False
    """It holds the state and takes part in sums."""
    over: bool = False
    """Its last step is done: all members have announced that they leave."""
    left: bool = False
    """It has left that job and now runs the user's own code after it."""
    courier: CourierState = CourierState.NONE
    world: int = 0
    """The last world whose couriers were let in."""
    opened: int = 0
    """The last world whose couriers were started, although it may never be entered."""
    shrink: int = 0
    """How often the group of its courier has shrunk in that world."""
    standby: int = 0
    """The world whose courier has come up, or already works."""
    agreed: int = 0
    """The last world whose members have agreed on who they are."""
    still: Stillness = MOVES
    outside: bool = False
    """It computes no lane: it runs the user's own code between two steps, or waits for others."""
    step: int = field(default=0, compare=False)
    """The step that it is in; a change of this alone is not a new observation."""
    summed_world: int = field(default=0, compare=False)
    """The world in which the last total that it has was made."""
    summed_shrink: int = field(default=0, compare=False)
    """How often the group had shrunk by then."""
    halts: bool = False
    """It was told to stop, or stops by itself because there was no launcher; nothing can prevent that."""
    saving: bool = False
    """It is writing its last checkpoint, or waits until it can write something."""
    unwritten: int = 0
    """The error number of a file that it cannot write, and waits for; 0 if there is none."""
    exiting: bool = False
    """It has begun to exit; the status is known once the kernel has freed its memory."""
    memory_removed: bool = False
    """The run's shared memory on its host was removed: nothing can be handed to a replacement any more."""
    unstarted: str = ""
    """Why the last start that was ordered could not be carried out; then `process` is still the previous worker."""
    stuck: bool = False
    """Its courier's repair takes too long, or must not be finished without the supervisor's decision."""

    @property
    def epoch(self) -> Epoch:
        """The membership that it is in."""
        return Epoch(self.attempt, self.world, self.shrink)


class HostChange(Enum):
    """What became of a host since the last turn."""

    AGENT_REPLACED = auto()
    """Its agent was lost and another one has taken over; its workers may be alive."""
    LOST = auto()
    BACK = auto()
    """A lost host answers again; its old workers no longer count."""


@dataclass(frozen=True)
class ChangedHost:
    """A host that has changed."""

    host: str
    how: HostChange
    attempt: int = 0
    """The latest attempt of which its new agent has found workers there: it ignores orders of earlier ones."""


@dataclass(frozen=True)
class Observations:
    """Everything seen since the last turn."""

    ranks: Mapping[int, RankSeen] = field(default_factory=dict)
    ended_worlds: frozenset[int] = frozenset()
    """Worlds whose mpirun is gone, and all its couriers with it."""
    reachable: frozenset[str] = frozenset()
    """Hosts whose agent can be reached now."""
    lost: frozenset[str] = frozenset()
    hosts_known: bool = True
    """Whether every host is known to be either reachable or lost: none is silent or being retried."""
    changes: tuple[ChangedHost, ...] = ()
    added: tuple[tuple[str, int], ...] = ()
    """Hosts that are new to the run, each with the number of workers it has room for; their agents have reported."""
    signal: StopSignal | None = None
    """A signal that the launcher has received."""
    unreachable: frozenset[str] | None = None
    """The answer to `Probe`: hosts whose agent answers, but that mpirun's network does not reach."""
    expelled: Mapping[str, bool] = field(default_factory=dict)
    """The answer to `Expel`: whether every process of the run on that host is certainly dead."""
    checkpoint: str | None = None
    """The answer to `FindCheckpoint`: the newest intact checkpoint, "" if there is none."""
