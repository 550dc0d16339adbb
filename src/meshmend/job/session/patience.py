"""How long a worker waits for a file that it cannot write: while it trains, for ever; while the run is halted, not."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

from meshmend.job.shm.records import WritableWorkerRecord


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
