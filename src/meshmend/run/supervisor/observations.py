"""What the supervisor is told at each turn: facts about workers, worlds and hosts, and answers to its questions.

Nothing here was decided by anybody. Ranks on hosts whose agent is not there are simply missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto


class CourierState(Enum):
    """A worker's courier, as its agent sees it."""

    NONE = auto()
    ALIVE = auto()
    STOPPED = auto()
    """It, or the process of mpirun that it belongs to, is stopped and will not continue by itself."""
    LOST = auto()


class Cause(Enum):
    """Why the supervisor had a worker killed."""

    NONE = auto()
    """It was not: the worker ended by itself, or somebody else killed it."""
    HANG = auto()
    LOST_COURIER = auto()
    STATELESS = auto()
    """Nobody is left that it could get the state from."""
    NOT_OPENED = auto()
    """The run is halted, and it had not opened its job yet."""
    HALTED = auto()
    """The run is halted, and it did not stop in time."""
    RESTARTED = auto()
    CUT_OFF = auto()
    """It is on the smaller side of a network that fell in two."""
    REPLACED = auto()
    """It was still there when its rank was started again."""
    RUN_ENDED = auto()


HANGS = 2
"""`RankSeen.still` of a worker that hangs by its own pace; one more each time that it then stays for twice as long."""
STOPPED = 99
"""`RankSeen.still` of a stopped process: it never continues by itself."""


@dataclass(frozen=True)
class WorkerError:
    """The exception that ended a worker."""

    step: int
    error: str
    """Its last line."""
    trace: str
    mistake: bool
    """Whether the user asked for something impossible: then the message is enough, without a trace."""


@dataclass(frozen=True)
class RankSeen:
    """One rank, as its agent sees it."""

    rank: int
    process: int = 0
    """0: nobody has been started there."""
    status: int | None = None
    """The exit status of the worker, negative for a signal; None while it lives."""
    cause: Cause = Cause.NONE
    error: WorkerError | None = None
    job: int = 1
    """The job that it has opened last, of those that its script has one after another; 1 before the first."""
    ready: bool = False
    """It has opened that job."""
    active: bool = False
    """It holds the state and takes part in sums."""
    over: bool = False
    """Its last step is done: all members said that they leave."""
    left: bool = False
    """It has left that job: what it does now is the user's own code after it."""
    courier: CourierState = CourierState.NONE
    world: int = 0
    """The world whose couriers were let in last."""
    shrink: int = 0
    """How often the group of its courier has shrunk in that world."""
    standby: int = 0
    """The world whose courier has come up, or works already."""
    agreed: int = 0
    """The last world whose members have agreed on who they are."""
    still: int = 0
    """0: it makes progress. 1: it has paused for longer than ever before. From `HANGS` on: it hangs."""
    outside: bool = False
    """It is in no lane: what it does is the user's own code between two steps, or it waits for others."""
    step: int = field(default=0, compare=False)
    """The step that it is in; that this changes is no news."""
    summed_world: int = field(default=0, compare=False)
    """The world in which the total of the step before that was made."""
    summed_shrink: int = field(default=0, compare=False)
    """How often the group had shrunk by then."""
    halts: bool = False
    """It was told to stop, or stops by itself because no launcher was there; nothing keeps it."""
    saving: bool = False
    """It is writing its last checkpoint."""
    exiting: bool = False
    """It has begun to exit; the status is known once its memory is given back."""
    unstarted: str = ""
    """Why the start that was ordered last could not be carried out; then `process` is still the worker before it."""
    stuck: bool = False
    """Its courier's repair takes too long, or must not be finished without word from the supervisor."""


class HostChange(Enum):
    """What became of a host since the last turn."""

    AGENT_REPLACED = auto()
    """Its agent was lost and another one is there; its workers may live."""
    LOST = auto()
    BACK = auto()
    """A lost host answers again; its old workers do not count any more."""


@dataclass(frozen=True)
class Observations:
    """Everything seen since the last turn."""

    ranks: Mapping[int, RankSeen] = field(default_factory=dict)
    ended_worlds: frozenset[int] = frozenset()
    """Worlds whose mpirun is gone, and all its couriers with it."""
    reachable: frozenset[str] = frozenset()
    """Hosts whose agent is there now."""
    lost: frozenset[str] = frozenset()
    hosts_known: bool = True
    """Whether every host is known to be there or lost: none is quiet, or being called again."""
    changes: tuple[tuple[str, HostChange], ...] = ()
    signal: str = ""
    """The name of a signal that asks the run to stop, such as SIGTERM."""
    unreachable: frozenset[str] | None = None
    """The answer to `Probe`: hosts whose agent answers, but that mpirun's network does not reach."""
    expelled: Mapping[str, bool] = field(default_factory=dict)
    """The answer to `Expel`: whether all that the host had of the run is certainly dead."""
    checkpoint: str | None = None
    """The answer to `FindCheckpoint`: the newest whole checkpoint, "" where there is none."""
