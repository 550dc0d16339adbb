"""What the supervisor wants done, in the order in which it lists them. The shell does it and reports what it sees next.

An action that could not be carried out (its host was just lost) is not an error: the next observations show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from meshmend.run.supervisor.messages import HaltReason, Message, WorldReason
from meshmend.run.supervisor.observations import Cause, RankSeen


@dataclass(frozen=True)
class Adopt:
    """Have a host's agent take over the workers of these ranks that live there."""

    host: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Start:
    """Start a worker."""

    rank: int
    host: str
    attempt: int
    resume: str = ""
    """The checkpoint to begin with."""
    passed: int = 0
    """So many jobs of its script are over: it passes through them with the state that each has left."""


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
    """Nobody has had the state in this attempt: the run may begin here."""
    reason: WorldReason
    ranks: tuple[int, ...]
    job: int = 1
    """Which job of the script it is for."""


@dataclass(frozen=True)
class KillWorld:
    """Kill the mpirun of a world, and with it its couriers."""

    number: int


@dataclass(frozen=True)
class ClearCouriers:
    """Have all agents kill the couriers that were let in: nobody of an old world may be left when a new one begins."""


@dataclass(frozen=True)
class Halt:
    """Have all workers stop, the writer after it has written a checkpoint."""

    writer: int
    """-1: nobody can."""


@dataclass(frozen=True)
class Release:
    """Let a worker go that was never needed, or did not hear that all leave."""

    rank: int
    host: str
    job: int = 1
    """From this job, and those before it."""


@dataclass(frozen=True)
class Remove:
    """Have agents kill everything they have of the run and remove its memory."""

    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Expel:
    """The same for a host behind a broken network, and give its agent up; answered in `Observations.expelled`."""

    host: str


@dataclass(frozen=True)
class Probe:
    """Find out which of these hosts mpirun's network reaches; answered in `Observations.unreachable`."""

    hosts: tuple[str, ...]


@dataclass(frozen=True)
class FindCheckpoint:
    """Look for the newest whole checkpoint; answered in `Observations.checkpoint`."""


@dataclass(frozen=True)
class Say:
    """Tell people."""

    message: Message


@dataclass(frozen=True)
class NoteAttempt:
    """Write down: an attempt begins, or is attached to."""

    attempt: int
    attached: bool = False
    restarted: bool = False
    """The policy `checkpoint` restarts everything after a failure."""


@dataclass(frozen=True)
class NoteDeath:
    """Write down: a worker died."""

    seen: RankSeen
    """The worker, as it was seen last."""
    member: bool
    """Whether it had joined a world: if not, its death delays nobody."""
    step: int
    """The step that it was in, or where it was no member, that the members were in; -1: there are none."""


@dataclass(frozen=True)
class NoteHalt:
    """Write down: the run is being halted; a launcher that attaches meanwhile goes on with that."""

    reason: HaltReason
    writer: int
    """As in `Halt`."""


@dataclass(frozen=True)
class NoteHostLost:
    """Write down: a host was lost."""

    host: str
    seen: tuple[RankSeen, ...]
    """Its ranks, as they were seen last."""


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
    """Write down: a world is lost."""

    how: Loss


@dataclass(frozen=True)
class Finish:
    """The run is over."""

    status: int
    reason: HaltReason | None = None
    no_world: bool = False
    """mpirun ended again and again before any courier came up, and there is no state to save: a sentence says so."""


Action = (
    Adopt | Start | Kill | OpenWorld | EnterWorld | KillWorld | ClearCouriers | Halt | Release | Remove | Expel | Probe
    | FindCheckpoint | Say | NoteAttempt | NoteDeath | NoteHalt | NoteHostLost | NoteMpirunLost | Finish
)  # fmt: skip
