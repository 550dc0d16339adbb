"""A run's folder: where it is, whether this version can read it, and the files of events in it.

A writer's first file is `worker-0.jsonl`; when it is full, `worker-0.0001.jsonl` follows, and so on. Only the last one
is written to. Earlier files may be made smaller at any time (compaction.py), each by replacing it as a whole.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from pathlib import Path
from threading import Lock, Thread, current_thread, main_thread
from typing import Any, BinaryIO

from meshmend.base import regular_files
from meshmend.base.clocks import HALT_LEDGER, ROOM_POLL, UNWRITABLE
from meshmend.base.schema import loads, wrong
from meshmend.errors import FormatError, JobError
from meshmend.telemetry.compaction import compact
from meshmend.telemetry.types import Event

FORMAT = 3
"""Of everything in a run's folder. 1: events without epoch numbers. 2: every event has one. 3: files of events follow
one another, and lines of the ledger may be gathered."""
OLDEST = 2
"""The oldest format that this version reads."""
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EIO}
"""Errors of a disk that is full, or unavailable for a moment: a run waits until that has passed."""
PASSING = NO_ROOM | {errno.EROFS, errno.ESTALE}
"""Errors of a file that could be written before, and that may pass without anybody touching the process."""
Patience = Callable[[OSError, float], bool]
"""Told of each failed attempt to write; whether to try again. The number: seconds that a worker which has to stop may
spend on it."""
RUNS = "runs"
"""The folder that holds the folders of runs, in the working directory, unless MESHMEND_RUNS names another."""
LONGEST = 100
"""Bytes of a run's name: with what is added to it, names of files have room for 255."""
DESCRIPTION = 1 << 20
"""Bytes that a `run.json` may have."""
FULL = 4 << 20
"""Bytes of a file of events after which the next one is begun: of a ledger, some 27,000 steps."""


def folder_of(run: str) -> Path:
    """Return where a run keeps its files; a run given as a path is taken as it is."""
    if os.sep in run:
        if "\0" in run or any(len(os.fsencode(part)) > 255 for part in run.split(os.sep)) or len(run) > 4000:
            raise JobError(f"{run[:40]!r}… is not the path of a run: a part of it is too long, or has a zero byte")
        return Path(run)
    check_name(run)
    return Path(os.environ.get("MESHMEND_RUNS", RUNS)) / run


def check_name(run: str) -> None:
    """Refuse a name that cannot be the name of files."""
    if not run or run in (".", "..") or run.startswith("-") or not all(c.isalnum() or c in "._-" for c in run):
        raise JobError(
            f"{run[:40]!r} is not a name for a run: use letters, digits, dots, dashes and underscores, such as lr-0.1"
        )
    if len(run.encode()) > LONGEST:
        raise JobError(f"{run[:40]!r}… is too long for the name of a run: use at most {LONGEST} letters")


def own(folder: Path) -> None:
    """Make the folder of a run; refuse it, or the folder of runs, where another user has put it in a place for all.

    In /tmp, say, a user who makes `runs` first could redirect what a run writes to any file of the run's owner. The
    rule is the kernel's for links in such places (fs.protected_symlinks).
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise unwritable(folder, error, folder.name) from None
    for path in (folder.parent, folder):
        with contextlib.suppress(FileNotFoundError):
            around, owner = os.stat(path.parent), os.lstat(path).st_uid
            for_all = around.st_mode & stat.S_ISVTX and around.st_mode & stat.S_IWOTH
            if for_all and owner not in (os.geteuid(), around.st_uid):
                raise JobError(
                    f"{path} belongs to another user (number {owner}), who could change whatever a run writes there: "
                    "work in a folder of your own, or name one in MESHMEND_RUNS"
                )


def read_description(folder: Path) -> dict[str, Any]:
    """What is in `run.json`; raises if that is damaged, or of a version that this one does not read."""
    path = folder / "run.json"
    with opened(path) as file:
        text = file.read(DESCRIPTION + 1)
    try:
        if len(text) > DESCRIPTION:
            raise FormatError(f"it has more than {DESCRIPTION} bytes")
        values = loads(text)
        found = values.get("format") if isinstance(values, dict) else None
        if type(found) is not int:
            raise wrong("format", found, f"{FORMAT}, in an object")
    except FormatError as error:
        raise damaged(path, error) from None
    if not OLDEST <= found <= FORMAT:
        raise OtherVersion(folder, found, values.get("version"))
    return dict(values)


def opened(path: Path) -> BinaryIO:
    """A file of a run, to read; whatever else lies in its place is refused, and nobody waits for a pipe."""
    try:
        return regular_files.opened(path)
    except OSError as error:
        advice = "its owner must let you" if isinstance(error, PermissionError) else "restore it, or start a new run"
        raise FormatError(f"cannot read {path} ({error.strerror}): {advice}") from None


def damaged(path: Path, error: Exception) -> FormatError:
    """The error for a `run.json` that is not what `meshmend run` writes."""
    why = "".join(c if c.isprintable() else "?" for c in str(error))
    return FormatError(f"{path} is not what meshmend run writes ({why}): restore it, or start a new run")


class OtherVersion(FormatError):
    """The run of another version of meshmend."""

    def __init__(self, folder: Path, found: int, version: object) -> None:
        other = "an older" if found < OLDEST else "a newer"
        by = f" ({version})" if isinstance(version, str) and version.isprintable() else ""
        from importlib import metadata  # a tenth of what a worker takes to load, and no worker asks

        own = metadata.version("meshmend")
        super().__init__(
            f"the run in {str(folder)!r} is in format {found}, of {other} version of meshmend{by}, and this version "
            f"({own}) reads formats {OLDEST} to {FORMAT}: continue the run with the version that started it, or "
            "start a new run"
        )


def check_format(folder: Path) -> None:
    """Refuse the folder of a run that another version of meshmend has written; events without `run.json` pass."""
    try:
        read_description(folder)
    except OtherVersion:
        raise
    except FormatError:
        return  # the reader of run.json reports what is wrong with it


def segment(folder: Path, writer: str, number: int) -> Path:
    """The file of events that a writer filled as its first, second, … one."""
    return folder / "events" / (f"{writer}.{number:04}.jsonl" if number else f"{writer}.jsonl")


def segments(folder: Path, writer: str = "*") -> dict[str, list[tuple[int, Path]]]:
    """The files of each writer by number; the last one is still written to."""
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in (folder / "events").glob("*.jsonl"):
        match = re.fullmatch(r"([^.]+)(?:\.(\d{4,12}))?\.jsonl", path.name, re.ASCII)
        if match and fnmatchcase(match[1], writer):
            found.setdefault(match[1], []).append((int(match[2] or 0), path))
    return {name: sorted(paths) for name, paths in sorted(found.items())}


def always(error: OSError, seconds: float) -> bool:
    """Try again for ever."""
    del error, seconds
    return True


class Log:
    """Appends events to a writer's files; an event that was written stays there if the writer is killed right after.

    What cannot be written stays in memory, in order, and is written as soon as it can be. With `wait` the writer waits
    for that, within that context; without it, call `flush` now and then.
    """

    wait: Callable[[], AbstractContextManager[Patience]] | None = None
    error: OSError | None = None
    """Why the last attempt to write failed, if it did."""

    def __init__(self, folder: Path, writer: str) -> None:
        self._folder, self._writer = folder, writer
        self._path, self._file, self._number, self._size = segment(folder, writer, 0), -1, 0, 0
        self._kept = bytearray()
        self._torn = False
        """Whether the file ends within a line, of which the rest is kept."""
        self._lock = Lock()  # checkpoints are written in the background, and reported
        self._compaction: Thread | None = None
        self._tried: set[int] = set()
        try:
            self._open_last()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise unwritable(self._path, error, folder.name) from None

    def write(self, event: Event) -> None:
        """Append an event."""
        with self._lock:
            self._kept += f"{event.line()}\n".encode()
        if not self.flush() and self.wait is not None:
            with self.wait() as go_on:
                self._wait(go_on)

    def _wait(self, go_on: Patience) -> None:
        """Try again until everything is written, the run is halted, or the error is one that stays."""
        began = time.monotonic()
        while not self.flush():
            error = self.error
            if error is None or not go_on(error, HALT_LEDGER):
                return
            if error.errno not in PASSING and time.monotonic() - began > UNWRITABLE:
                if current_thread() is not main_thread():
                    return  # an error here would end this thread alone; the main thread's next line finds out
                self.wait = None  # what follows, such as a last checkpoint, must not wait as long again
                raise unwritable(self._path, error, self._folder.name)
            time.sleep(ROOM_POLL)

    def flush(self) -> bool:
        """Write what was held back; return whether nothing is left."""
        with self._lock:
            try:
                if self._file < 0:
                    self._open_last()
                if self._size >= FULL and not self._torn:
                    self._rotate()
                while self._kept:
                    done = os.write(self._file, self._kept)
                    self._size += done
                    self._torn = self._kept[done - 1] != ord("\n")
                    del self._kept[:done]
            except OSError as error:
                self.error = error
                return False
            self.error = None
            return True

    def close(self) -> None:
        """Close the file; a process that ends does so too."""
        os.close(self._file)

    def _open_last(self) -> None:
        """Continue with the newest file."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        before = segments(self._folder, self._writer).get(self._writer, [])
        self._open(before[-1][0] if before else 0)

    def _open(self, number: int) -> None:
        """Open a file to append to, and lock it for as long as this process writes to it.

        A line that a killed writer left unfinished gets its newline.
        """
        path = segment(self._folder, self._writer, number)
        while True:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            with contextlib.suppress(OSError):  # some file systems have no locks; there, nothing is made smaller
                fcntl.flock(file, fcntl.LOCK_SH)
            found = os.fstat(file)
            if found.st_nlink:
                break
            os.close(file)  # it was made smaller just now
        self._file, self._path, self._number, self._size = file, path, number, found.st_size
        if self._size > 0 and os.pread(file, 1, self._size - 1) != b"\n":
            self._kept[:0] = b"\n"

    def _rotate(self) -> None:
        """Begin the next file, and have earlier ones made smaller; if there is no room, continue with this one."""
        old = self._file
        with contextlib.suppress(OSError, RuntimeError):  # or no room for another thread
            self._open(self._number + 1)
            fcntl.flock(old, fcntl.LOCK_UN)  # not only by closing it: a fork of this process may have it open too
            os.close(old)
            if self._compaction is None or not self._compaction.is_alive():
                self._compaction = Thread(target=self._compact, args=[self._number], name="meshmend compaction")
                self._compaction.start()

    def _compact(self, until: int) -> None:
        """Include files that a killed process has left."""
        for number, path in segments(self._folder, self._writer).get(self._writer, []):
            with contextlib.suppress(OSError):
                if number < until and number not in self._tried and path.stat().st_size >= FULL:
                    compact(path)
                    self._tried.add(number)


def unwritable(path: Path, error: OSError, run: str) -> JobError:
    """The error for a file of a run that cannot be written."""
    return JobError(
        f"cannot write {path} ({error.strerror}): fix that, then resume the run with meshmend run --resume {run}"
    )
