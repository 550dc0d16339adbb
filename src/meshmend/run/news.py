"""The launcher's own messages to the user, besides those of the supervisor: typed facts, which `console.py` words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshmend.run.supervisor.messages import WorldReason


@dataclass(frozen=True)
class WorldEntered:
    """The couriers of a world work now."""

    number: int
    reason: WorldReason
    processes: Mapping[int, int]
    """The processes of workers that the user does not know yet, by rank."""
    run: str = ""
    """The run, in its first world under this launcher."""
    launcher: int = 0
    mpirun: int = 0


@dataclass(frozen=True)
class WorldCommand:
    """The command line of a world's mpirun."""

    number: int
    line: Sequence[str]


@dataclass(frozen=True)
class CourierSaid:
    """A courier has printed this for the user: it has no other way."""

    text: str


@dataclass(frozen=True)
class ActionFailed:
    """An action could not be carried out, for this reason; the supervisor decides again."""

    why: str


@dataclass(frozen=True)
class LauncherFailed:
    """The launcher itself failed, and leaves the workers alive; `log` has the trace."""

    run: str
    error: str
    log: Path | None


@dataclass(frozen=True)
class TerminalLost:
    """The terminal was closed; `log` has what follows."""

    log: Path | None


@dataclass(frozen=True)
class DiskFull:
    """The disk of the run's folder is full: the run waits."""

    folder: Path


@dataclass(frozen=True)
class DiskFreed:
    """There is room on it again."""


@dataclass(frozen=True)
class Unwritten:
    """These workers, or the launcher if there are none, cannot write to the run's folder, for this reason."""

    ranks: tuple[int, ...]
    folder: Path
    why: str


@dataclass(frozen=True)
class Written:
    """They can write there again."""

    ranks: tuple[int, ...]
    folder: Path


@dataclass(frozen=True)
class CheckpointUnwritten:
    """The last checkpoint could not be written, for this reason."""

    rank: int
    why: str


@dataclass(frozen=True)
class DamagedCheckpoint:
    """A checkpoint is passed over, for this reason."""

    why: str


@dataclass(frozen=True)
class Resuming:
    """A run resumes from a checkpoint; from the beginning if that is ""."""

    checkpoint: str


@dataclass(frozen=True)
class NothingToResume:
    """The run is done."""

    run: str


@dataclass(frozen=True)
class AttachingInstead:
    """The run was to be resumed, but has live workers, by host."""

    run: str
    living: Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class HostRefused:
    """A host cannot be added, for this reason."""

    host: str
    why: str


@dataclass(frozen=True)
class NoAgentThere:
    """A host cannot be added, because no agent could be started there."""

    host: str
    why: str


@dataclass(frozen=True)
class HostAnnounced:
    """The launcher of a run has accepted a host with room for so many workers."""

    run: str
    host: str
    workers: int


@dataclass(frozen=True)
class StrangerRefused:
    """Somebody at this address announced a host without knowing the run's secret."""

    address: str


@dataclass(frozen=True)
class CanResume:
    """The run has ended before its job was done, and has a checkpoint."""

    run: str


@dataclass(frozen=True)
class CannotResume:
    """Its folder was removed, and could not be made again for this reason."""

    folder: Path
    why: str


@dataclass(frozen=True)
class Done:
    """The run is done."""

    run: str
    steps: int
    jobs: int = 1
    failures: int = 0


News = (
    WorldEntered | WorldCommand | CourierSaid | ActionFailed | LauncherFailed | TerminalLost | DiskFull | DiskFreed
    | Unwritten | Written | CheckpointUnwritten | DamagedCheckpoint | Resuming | NothingToResume | AttachingInstead
    | HostRefused | NoAgentThere | HostAnnounced | StrangerRefused | CanResume | CannotResume | Done
)  # fmt: skip
