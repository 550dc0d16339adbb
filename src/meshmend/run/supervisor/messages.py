"""The supervisor's messages to the user: typed facts, which `run/console.py` puts into words.

A message is data, so that tests compare values and nothing depends on wording.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meshmend.run.supervisor.observations import Cause, WorkerError


@dataclass(frozen=True)
class Begin:
    """A world: the first one of a job."""

    job: int = 1


@dataclass(frozen=True)
class Attached:
    """A world: another launcher took over."""


@dataclass(frozen=True)
class Restarted:
    """A world: the policy `restart` returns to the last commit with a new worker."""


@dataclass(frozen=True)
class Joined:
    """A world: these ranks join."""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class MpirunLost:
    """A world: mpirun, or all its couriers, died."""


@dataclass(frozen=True)
class CouriersStopped:
    """A world: mpirun, its daemon on a host, or a courier was stopped (SIGSTOP)."""


@dataclass(frozen=True)
class RepairStuck:
    """A world: the couriers could not finish their repair by themselves."""


@dataclass(frozen=True)
class HostGone:
    """A world: a host was lost."""

    host: str


@dataclass(frozen=True)
class NetworkSplit:
    """A world: the network was partitioned, and these hosts are on the other side."""

    hosts: tuple[str, ...]


WorldReason = (
    Begin | Attached | Restarted | Joined | MpirunLost | CouriersStopped | RepairStuck | HostGone | NetworkSplit
)
"""Why a world is formed."""


@dataclass(frozen=True)
class Signalled:
    """Halt: the launcher received this signal."""

    signal: str


@dataclass(frozen=True)
class Stopped:
    """Halt: there was no launcher, and all workers that have the state are stopping by themselves, or have stopped."""


@dataclass(frozen=True)
class TooFew:
    """Halt: fewer workers are left than the required minimum."""

    left: int
    least: int


@dataclass(frozen=True)
class StateLost:
    """Halt: all workers that had the state are dead."""


@dataclass(frozen=True)
class MemoryRemoved:
    """Halt: the run's shared memory was removed on these hosts."""

    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Standstill:
    """Halt: no worker has made progress for this long."""

    seconds: float


@dataclass(frozen=True)
class Minority:
    """Halt: these workers are not a majority of the members that may be alive; the others may still be training."""

    left: tuple[int, ...]
    members: tuple[int, ...]


@dataclass(frozen=True)
class WrongSide:
    """Halt: the network was partitioned, and mpirun cannot reach the larger side."""

    hosts: tuple[str, ...]
    near: tuple[int, ...]
    far: tuple[int, ...]


@dataclass(frozen=True)
class BadStart:
    """Halt: these workers failed by themselves before they completed a step, so the run never had all its workers."""

    ranks: tuple[int, ...]
    workers: int


@dataclass(frozen=True)
class NoCourierEver:
    """Halt: this many worlds in a row ended before any courier came up."""

    worlds: int


@dataclass(frozen=True)
class NoProgress:
    """Halt: this many worlds in a row ended without completing a step."""

    worlds: int
    step: int


HaltReason = (
    Signalled
    | Stopped
    | TooFew
    | StateLost
    | MemoryRemoved
    | Standstill
    | Minority
    | WrongSide
    | BadStart
    | NoCourierEver
    | NoProgress
)
"""Why a run is halted."""


@dataclass(frozen=True)
class WorkerEnded:
    """A worker that was still needed ended."""

    rank: int
    status: int
    """Negative: a signal."""
    cause: Cause
    early: bool = False
    """With status 0, but before its job was over."""
    outside: bool = False
    """It hung in the user's own code between two steps."""
    process: int = field(default=0, compare=False)
    step: int = field(default=-1, compare=False)
    """The step that it was in; -1 if it was in none."""


@dataclass(frozen=True)
class WorkerRaised:
    """A worker's script raised an exception."""

    rank: int
    error: WorkerError


@dataclass(frozen=True)
class StartFailed:
    """A worker could not be started, for this reason; the supervisor keeps retrying."""

    rank: int
    why: str


@dataclass(frozen=True)
class JoinFailed:
    """Worlds in which these ranks would have joined did not come up; that is tried again and again."""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class GivenUp:
    """A worker was restarted so often without completing a step that the others continue without it."""

    rank: int
    restarts: int


@dataclass(frozen=True)
class Replacing:
    """A new worker is being started in place of a dead one."""

    rank: int


@dataclass(frozen=True)
class AllStill:
    """No worker is making progress; the run waits."""


@dataclass(frozen=True)
class FirstBusy:
    """The first worker has been busy between two steps for a long time, and all others wait for it."""

    rank: int


@dataclass(frozen=True)
class AgentReplaced:
    """The agent on a host was lost, and another one has taken over."""

    host: str


@dataclass(frozen=True)
class HostLost:
    """A host is lost, and these workers with it."""

    host: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class HostBack:
    """A lost host answers again."""

    host: str


@dataclass(frozen=True)
class HostAdded:
    """A new host is part of the run from now on, and has these ranks."""

    host: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Split:
    """mpirun cannot reach these hosts; the workers there are stopped, and the others continue."""

    hosts: tuple[str, ...]
    far: tuple[int, ...]
    near: tuple[int, ...]


@dataclass(frozen=True)
class Halting:
    """The run stops; with a checkpoint, if some worker can write one."""

    reason: HaltReason
    checkpoint: bool


@dataclass(frozen=True)
class Restarting:
    """Everything restarts from a checkpoint, or from the beginning if that is ""."""

    checkpoint: str


@dataclass(frozen=True)
class RestartsExhausted:
    """A number of restarts in a row got no further than this checkpoint."""

    restarts: int
    checkpoint: str


Message = (
    WorkerEnded | WorkerRaised | StartFailed | JoinFailed | GivenUp | Replacing | AllStill | FirstBusy | AgentReplaced
    | HostLost | HostBack | HostAdded | Split | Halting | Restarting | RestartsExhausted
)  # fmt: skip
