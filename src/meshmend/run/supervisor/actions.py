"""The actions that the supervisor orders. The shell carries them out in order and reports what it sees next.

An action that could not be carried out (its host was just lost) is not an error: the next observations show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from meshmend.run.supervisor.messages import HaltReason, Message, WorldReason
from meshmend.run.supervisor.observations import Cause, RankSeen


@dataclass(frozen=True)
class Adopt:
    """Have a host's agent take over the live workers of these ranks."""

    host: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Start:
    """Start a worker."""

    rank: int
    host: str
    resume: str = ""
    """The checkpoint to start from."""
    passed: int = 0
    """How many jobs of its script are over: the worker passes through them with the last state of each."""


@dataclass(frozen=True)
class Kill:
    """Kill a worker; what follows is an ordinary death."""

    rank: int
    host: str
    cause: Cause


@dataclass(frozen=True)
class OpenWorld:
    """Start mpirun for these ranks, without letting its couriers in."""

    number: int
    members: Mapping[str, Mapping[int, int]]
    """By host: the ranks, and the process of each."""


@dataclass(frozen=True)
class EnterWorld:
    """Let the couriers of a world in, in place of those of the world before it."""

    number: int
    fresh: bool
    """No worker has had the state in this attempt: the run may begin here."""
    reason: WorldReason
    ranks: tuple[int, ...]
    job: int = 1
    """Which job of the script it is for."""
    wanted: int = field(default=0, compare=False)
    """How many members are to take part in sums; the others are spares."""


@dataclass(frozen=True)
class KillWorld:
    """Kill the mpirun of a world, and with it its couriers."""

    number: int


@dataclass(frozen=True)
class ClearCouriers:
    """Have all agents kill the couriers that were let in: none of an old world may be left when a new one begins."""


@dataclass(frozen=True)
class Halt:
    """Have all workers stop, the writer after it has written a checkpoint."""

    writer: int
    """The rank that writes it; -1: no worker can."""


@dataclass(frozen=True)
class Release:
    """Tell a worker to leave that was never needed, or did not hear that all members leave."""

    rank: int
    host: str
    job: int = 1
    """The job that it leaves, together with all earlier ones."""


@dataclass(frozen=True)
class Remove:
    """Have agents kill every process of the run on their hosts and remove its shared memory."""

    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Expel:
    """`Remove` for a host that is cut off, and drop its agent; answered in `Observations.expelled`."""

    host: str


@dataclass(frozen=True)
class Probe:
    """Find out which of these hosts mpirun's network reaches; answered in `Observations.unreachable`."""

    hosts: tuple[str, ...]


@dataclass(frozen=True)
class FindCheckpoint:
    """Find the newest intact checkpoint; answered in `Observations.checkpoint`."""


@dataclass(frozen=True)
class Say:
    """Print a message to the user."""

    message: Message


@dataclass(frozen=True)
class NoteAttempt:
    """Record that an attempt begins, or that a launcher attaches to it."""

    attempt: int
    attached: bool = False
    restarted: bool = False
    """The policy `checkpoint` restarts everything after a failure."""


@dataclass(frozen=True)
class NoteDeath:
    """Record that a worker died."""

    seen: RankSeen
    """The last observation of the worker."""
    member: bool
    """Whether it had joined a world: if not, its death delays no other worker."""
    step: int
    """The step that it was in or, if it had no state yet, that the others were in; -1: none of them had it."""


@dataclass(frozen=True)
class NoteHalt:
    """Record that the run is being halted; a launcher that attaches meanwhile continues the halt."""

    reason: HaltReason
    writer: int
    """As in `Halt`."""


@dataclass(frozen=True)
class NoteHostLost:
    """Record that a host was lost."""

    host: str
    seen: tuple[RankSeen, ...]
    """The last observations of its ranks."""


class Loss(Enum):
    """How a world was lost."""

    GONE = auto()
    """Mpirun, or all its couriers, died."""
    STOPPED = auto()
    """Mpirun or a courier is stopped."""
    LATE = auto()
    """Its couriers never came up."""


@dataclass(frozen=True)
class NoteMpirunLost:
    """Record that a world is lost."""

    how: Loss


@dataclass(frozen=True)
class Finish:
    """The run is over."""

    status: int
    reason: HaltReason | None = None
    no_world: bool = False
    """mpirun kept exiting before any courier came up, and there is no state to save: the launcher says so."""


Action = (
    Adopt | Start | Kill | OpenWorld | EnterWorld | KillWorld | ClearCouriers | Halt | Release | Remove | Expel | Probe
    | FindCheckpoint | Say | NoteAttempt | NoteDeath | NoteHalt | NoteHostLost | NoteMpirunLost | Finish
)  # fmt: skip
