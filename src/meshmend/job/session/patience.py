"""Pauses in which a worker makes no progress, and must not be taken for one that hangs.

It waits for a file that it cannot write: for ever while it trains, but not while the run is halted.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from meshmend.job.shm.records import WritableWorkerRecord


class NestedFlag:
    """A flag of a worker's record that is up as long as anything wants it up, in whichever thread.

    Pauses may lie within each other, and those of two threads may overlap: the thread that writes checkpoints waits for
    room too.
    """

    def __init__(self, own: WritableWorkerRecord, flag: str) -> None:
        self._own, self._flag = own, flag
        self._lock, self._many, self._before = threading.Lock(), 0, False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Have it up in this context."""
        with self._lock:
            if not self._many:
                self._before = getattr(self._own, self._flag)
            self._many += 1
            setattr(self._own, self._flag, True)
        try:
            yield
        finally:
            with self._lock:
                self._many -= 1
                if not self._many:
                    setattr(self._own, self._flag, self._before)


class WriterPatience:
    """One worker's; the launcher reads in its record what it waits for."""

    def __init__(self, own: WritableWorkerRecord, halts: Callable[[], bool]) -> None:
        self._own, self._halts = own, halts
        self._halted: float | None = None
        """When it was first seen that the run is halted."""
        self.gave_up = False

    def __call__(self, error: OSError, seconds: float) -> bool:
        """Whether to try again; a worker that has to stop may spend so many seconds on it."""
        self._own.unwritten = error.errno or 0
        if not self._halts():
            return True
        if self._halted is None:
            self._halted = time.monotonic()
        # The user knows of a full disk and can make room; stopping the run a second time ends that wait.
        self.gave_up = error.errno != errno.ENOSPC and time.monotonic() - self._halted >= seconds
        return not self.gave_up
