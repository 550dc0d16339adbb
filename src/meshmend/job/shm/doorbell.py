"""A doorbell wakes the process that waits for it: a named pipe, which needs neither memory nor a thread."""

from __future__ import annotations

import contextlib
import os
import select
from pathlib import Path


class Doorbell:
    """One process's doorbell; the pipe is opened when it is first used, to read and write, so that it never ends."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, -1
        self._poll = select.poll()  # not select, which knows no file above 1,023

    def __del__(self) -> None:
        """Close it: a courier opens those of all its neighbours, again in every group."""
        if self._file >= 0:
            os.close(self._file)

    def make(self) -> None:
        """Create it."""
        os.mkfifo(self._path, 0o600)

    def ring(self) -> None:
        """Wake the process that waits, or the next time it would."""
        with contextlib.suppress(OSError):  # it is full, the run has been cleaned up, or too many files are open
            os.write(self._open(), b"!")

    def wait(self, seconds: float) -> None:
        """Sleep until it rings, or until the timeout."""
        file = self._open()
        if self._poll.poll(seconds * 1000):
            with contextlib.suppress(BlockingIOError):
                os.read(file, 4096)

    def _open(self) -> int:
        if self._file < 0:
            self._file = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
            self._poll.register(self._file, select.POLLIN)
        return self._file
