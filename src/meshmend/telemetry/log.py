"""One writer's file of events."""

from __future__ import annotations

import os
from pathlib import Path

from meshmend.errors import JobError
from meshmend.telemetry.types import Event


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
