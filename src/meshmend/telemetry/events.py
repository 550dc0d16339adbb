"""What happened in a run: typed events, one JSON line each. Everything that reports on a run reads these and no more.

    runs/RUN/run.json               what was asked for
    runs/RUN/events/launcher.jsonl  one file a writer, so that no lock is needed, also on a shared file system
    runs/RUN/events/worker-0.jsonl
    runs/RUN/events/courier-0.jsonl …

The **ledger** is the `Committed` and `Skipped` events of all workers. Any surviving worker's lines suffice, since each
holds the account of all.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from meshmend.errors import FormatError, JobError

FORMAT = 1
RUNS = "runs"
"""The folder that holds the folders of runs, in the working directory, unless MESHMEND_RUNS names another."""

END = 1 << 16
"""Bytes at the end of a ledger that hold its last lines."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all events; `time` is in seconds since 1970."""

    kinds: ClassVar[dict[str, type[Event]]] = {}
    time: float = field(default_factory=time.time)

    def __init_subclass__(cls) -> None:
        Event.kinds[cls.__name__] = cls

    def line(self) -> str:
        """The event as JSON."""
        return json.dumps({"kind": type(self).__name__, **asdict(self)}, separators=(",", ":"))


@dataclass(frozen=True, kw_only=True)
class Began(Event):
    """The launcher: a run begins (`attempt` 0), is resumed from a checkpoint (1, 2, …), or is attached to."""

    attempt: int
    workers: int
    spares: int
    on_failure: str
    attached: bool = False


@dataclass(frozen=True, kw_only=True)
class Formed(Event):
    """The launcher: a world of couriers was started under these ranks."""

    world: int
    ranks: list[int]
    why: str


@dataclass(frozen=True, kw_only=True)
class Died(Event):
    """The launcher: somebody was seen to be dead; a courier, that it has found a worker whose state differs."""

    rank: int
    what: str
    """"worker", "mpirun" or "host"."""
    how: str
    """Such as "SIGKILL", "status 1", "hang", "lost its courier", "evicted"."""


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """The launcher: a worker was started."""

    rank: int
    process: int
    host: str = ""


@dataclass(frozen=True, kw_only=True)
class Ended(Event):
    """The launcher: the run is over."""

    status: int
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Repaired(Event):
    """A courier: from a failure to the next round's total; seconds of each part, by name."""

    rank: int
    round: int
    """The round that was going on."""
    noticed: float
    """When this courier learnt of the failure (seconds since 1970)."""
    times: dict[str, float]
    """Of: revoke, shrink, re-form, exchange, roll forward, state, recompute, first commit. Only what took place."""
    active: list[int]
    """The ranks that go on."""


@dataclass(frozen=True, kw_only=True)
class Opened(Event):
    """A worker: it has a job over this data, and takes part from `step` on."""

    rank: int
    attempt: int
    step: int
    size: int
    batch: int
    lanes: int
    seed: int
    reduction: str


@dataclass(frozen=True, kw_only=True)
class Committed(Event):
    """A worker: a step is done. One line of the ledger."""

    rank: int
    attempt: int
    step: int
    by: list[list[int]]
    """Which rank computed which lanes, in their order: [rank, how many lanes] one after another."""
    digest: str
    """A hash of the state after the step."""
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Skipped(Event):
    """A worker: a step's sum was not finite, and the user asked to skip such steps. One line of the ledger."""

    rank: int
    attempt: int
    step: int
    by: list[list[int]]
    why: str


@dataclass(frozen=True, kw_only=True)
class Saved(Event):
    """A worker: a checkpoint of the state before `step` is on disk."""

    step: int
    path: str
    seconds: float
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Raised(Event):
    """A worker: the user's script raised an exception."""

    rank: int
    step: int
    error: str
    """Its last line."""
    trace: str


@dataclass(frozen=True, kw_only=True)
class Struck(Event):
    """Chaos or a test: this was killed, stopped or flipped on purpose, at this very time."""

    rank: int
    what: str
    point: str = ""


def folder_of(run: str) -> Path:
    """Where a run keeps its files; one that is given as a path is taken as it is."""
    if os.sep in run:
        return Path(run)
    return Path(os.environ.get("MESHMEND_RUNS", RUNS)) / run


class Log:
    """One writer's file of events; a line is written whole, and is there when the writer is killed after it."""

    def __init__(self, folder: Path, writer: str) -> None:
        self._path = folder / "events" / f"{writer}.jsonl"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            size = os.fstat(self._file).st_size
            self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"
        except OSError as error:
            raise self._failed(error) from None

    def write(self, event: Event) -> None:
        """Append an event; a line before it that was cut short keeps its own line."""
        data = memoryview(("\n" * self._torn + event.line() + "\n").encode())
        try:
            while data:
                data = data[os.write(self._file, data) :]
                self._torn = len(data) > 0
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> JobError:
        return unwritten(self._path, error)


def unwritten(path: Path, error: OSError) -> JobError:
    """What to say of a file of a run that cannot be written."""
    return JobError(f"{path} cannot be written ({error.strerror}): mend that, and go on with meshmend run --resume RUN")


def _nobody(*_: Any) -> None:
    pass


def read(folder: Path, writer: str = "*", torn: Callable[[str], None] = _nobody) -> list[Event]:
    """All events of a run, or of one writer, in order of time; lines that were cut short are left out.

    `torn` is told of each of those, in a sentence, but for a last line that may still be being written.
    """
    if not (folder / "events").is_dir():
        raise JobError(f"there is no run in {str(folder)!r}: expected a folder with events in it, such as runs/NAME")
    paths = sorted((folder / "events").glob(f"{writer}.jsonl"))
    return sorted((event for path in paths for event in _lines(path, torn)), key=lambda event: event.time)


def _lines(path: Path, torn: Callable[[str], None]) -> Iterator[Event]:
    lines = path.read_text(errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        try:
            if line:
                yield parse(json.loads(line))
        except (ValueError, TypeError, KeyError) as error:
            cut = isinstance(error, json.JSONDecodeError) and line.startswith("{")
            if not cut and number < len(lines):
                raise FormatError(f"{path}, line {number} is no event ({error}): {line[:80]!r}") from None
            if number < len(lines):
                torn(f"{path}, line {number} is torn (its writer was killed, or the disk was full) and is left out")


def steps_done(folder: Path) -> int:
    """How many steps the ledger ends with; only the ends of files are read, as a ledger may be long."""
    most = 0
    for path in (folder / "events").glob("worker-*.jsonl"):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - END))
            lines = file.read().split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                event = parse(json.loads(line))
                most = max(most, event.step + 1 if isinstance(event, Committed | Skipped) else 0)
    return most


def parse(values: dict[str, Any]) -> Event:
    """The event that a JSON object holds; fields that a later version added are left out."""
    kind = Event.kinds[values["kind"]]
    known = {entry.name for entry in fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in known})
