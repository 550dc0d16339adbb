"""Waiting until something happens: a file can be read, or a process ends. With `poll`, which knows no highest file.

`select` refuses files from number 1,024 on, and a worker with a large data set may well have that many open.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterable


def readable(files: Iterable[int], seconds: float) -> list[int]:
    """Sleep until one of these files can be read or has ended, or until the timeout; return the files that can."""
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return [file for file, _ in poll.poll(1e3 * seconds)]


def spin(until: Callable[[], bool], seconds: float) -> bool:
    """Look for something again and again, and let others run in between; return False after the timeout."""
    end = time.monotonic() + seconds
    while not until():
        if time.monotonic() > end:
            return False
        os.sched_yield()  # unlike a sleep, of whatever length, it does not wait for a timer
    return True


class ExitWaiter:
    """Sleeps until one of some processes ends, so that they need not be polled."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}

    def wait(self, processes: Iterable[int], seconds: float, *others: int) -> bool:
        """Sleep until one of these exits or one of the other files can be read; return False after the timeout."""
        wanted = {process for process in processes if process > 0}
        for process in self._files.keys() - wanted:
            self._forget(process)
        gone = False
        for process in wanted - self._files.keys():
            try:
                self._files[process] = os.pidfd_open(process)
            except OSError:
                gone = True  # already; the caller's next look finds that out
        ready = readable([*self._files.values(), *others], seconds)
        for process, file in list(self._files.items()):
            if file in ready:
                self._forget(process)
        return gone or bool(ready)

    def _forget(self, process: int) -> None:
        os.close(self._files.pop(process))
