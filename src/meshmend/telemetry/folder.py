"""A run's folder: where it is, whether this version can read it, and one writer's file of events in it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from meshmend.errors import FormatError, JobError
from meshmend.telemetry.types import Event

FORMAT = 2
"""Of everything in a run's folder. 1: events without epoch numbers. 2: every event has one."""
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
    """Appends events to one file; an event that was written stays there if the writer is killed right after it."""

    def __init__(self, folder: Path, writer: str) -> None:
        self._path = folder / "events" / f"{writer}.jsonl"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            size = os.fstat(self._file).st_size
            self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"
        except OSError as error:
            raise unwritable(self._path, error) from None

    def write(self, event: Event) -> None:
        """Append an event; if the line before it was cut short, that line is ended first."""
        data = memoryview(("\n" * self._torn + event.line() + "\n").encode())
        try:
            while data:
                data = data[os.write(self._file, data) :]
                self._torn = len(data) > 0
        except OSError as error:
            raise unwritable(self._path, error) from None


def unwritable(path: Path, error: OSError) -> JobError:
    """The error for a file of a run that cannot be written."""
    return JobError(
        f"cannot write {path} ({error.strerror}): fix that, then resume the run with meshmend run --resume RUN"
    )
