"""A run's folder: where it is, whether this version can read it, and one writer's file of events in it."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from meshmend.base.clocks import ROOM_POLL
from meshmend.errors import FormatError, JobError
from meshmend.telemetry.types import Event

FORMAT = 2
"""Of everything in a run's folder. 1: events without epoch numbers. 2: every event has one."""
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EIO}
"""What a disk says that has no room, or is not there for a moment: a run waits until that has passed."""
RUNS = "runs"
"""The folder that holds the folders of runs, in the working directory, unless MESHMEND_RUNS names another."""


def folder_of(run: str) -> Path:
    """Where a run keeps its files; a run that is given as a path is taken as it is."""
    if os.sep in run:
        return Path(run)
    return Path(os.environ.get("MESHMEND_RUNS", RUNS)) / run


def check_format(folder: Path) -> None:
    """Refuse the folder of a run that another version of meshmend has written; one without `run.json` passes."""
    try:
        found: Any = json.loads((folder / "run.json").read_text())["format"]
    except (OSError, ValueError, TypeError, KeyError):
        return  # whoever needs run.json says what is wrong with it
    if isinstance(found, int) and found != FORMAT:
        other = "an older" if found < FORMAT else "a newer"
        raise FormatError(
            f"the run in {str(folder)!r} was written in format {found} by {other} version of meshmend, and this "
            f"version reads format {FORMAT}: finish it with that version, or begin a new run"
        )


class Log:
    """Appends events to one file; an event that was written stays there if the writer is killed right after it.

    What the disk has no room for stays in memory, in order, and is written as soon as it can be. With `wait` the writer
    waits for that, within that context; without it, call `flush` now and then.
    """

    wait: Callable[[], AbstractContextManager[Any]] | None = None

    def __init__(self, folder: Path, writer: str) -> None:
        self._path = folder / "events" / f"{writer}.jsonl"
        self._file = -1
        self._kept = bytearray()
        self._lock = threading.Lock()
        try:
            self._open()
        except OSError as error:
            if error.errno not in FULL:
                raise unwritable(self._path, error) from None

    def write(self, event: Event) -> None:
        """Append an event."""
        with self._lock:
            self._kept += f"{event.line()}\n".encode()
        if not self.flush() and self.wait is not None:
            with self.wait():
                while not self.flush():
                    time.sleep(ROOM_POLL)

    def flush(self) -> bool:
        """Write what was kept back; whether nothing is left."""
        with self._lock:
            try:
                if self._file < 0:
                    self._open()
                while self._kept:
                    del self._kept[: os.write(self._file, self._kept)]
            except OSError:
                return False
            return True

    def _open(self) -> None:
        """Open the file; a line that a killed writer left unfinished is ended."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size = os.fstat(self._file).st_size
        if size > 0 and os.pread(self._file, 1, size - 1) != b"\n":
            self._kept[:0] = b"\n"


def unwritable(path: Path, error: OSError) -> JobError:
    """The error for a file of a run that cannot be written."""
    return JobError(
        f"cannot write {path} ({error.strerror}): fix that, then resume the run with meshmend run --resume RUN"
    )
