"""Says once that something of a run cannot be written, and once that it can be again.

A run waits instead of ending: workers hold the step that they cannot record, the launcher its events, and a checkpoint
that cannot be written is written later. Workers may be unable to say so, because their output goes to the same disk;
the launcher has a terminal. What a worker cannot write, and why, is in its record in shared memory.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from meshmend.base.clocks import HALT_LEDGER, ROOM_POLL, ROOM_SAID
from meshmend.run.news import DiskFreed, DiskFull, News, Unwritten, Written


class DiskWatch:
    """One run's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._full = False
        self._reason = ""
        """Why the launcher itself cannot write, if not for want of room."""
        self._looked = 0.0
        self._since: dict[int, tuple[int, float]] = {}
        """Workers that cannot write: the error's number, and since when."""
        self.told: dict[int, int] = {}
        """Those that were reported."""

    def look(self, error: OSError | None, unwritten: Mapping[int, int], now: float) -> list[News]:
        """Return messages about what has changed.

        `error` is why the launcher itself cannot write everything, and `unwritten` the number of such an error for
        every worker: 0 where it can write.
        """
        return [*self._own(error, now), *self._theirs(unwritten, now)]

    def _own(self, error: OSError | None, now: float) -> list[News]:
        if error is None and not self._full and not self._reason and now - self._looked < ROOM_POLL:
            return []
        self._looked = now
        full = is_full(self._folder) or (error is not None and error.errno in (errno.ENOSPC, errno.EDQUOT))
        why = "" if full or error is None else str(error.strerror)
        before, self._full, self._reason = (self._full, self._reason), full, why
        if before == (full, why):
            return []
        if full:
            return [DiskFull(self._folder)]
        if why:
            return [Unwritten((), self._folder, why)]
        return [DiskFreed() if before[0] else Written((), self._folder)]

    def _theirs(self, unwritten: Mapping[int, int], now: float) -> list[News]:
        for rank, number in unwritten.items():
            if not number or (self._full and number == errno.ENOSPC):  # that has been said
                self._since.pop(rank, None)
            elif self._since.get(rank, (0, 0.0))[0] != number:
                self._since[rank] = number, now
        ripe = {rank: number for rank, (number, since) in self._since.items() if now - since >= ROOM_SAID}
        new = {rank: number for rank, number in ripe.items() if self.told.get(rank) != number}
        again = sorted(rank for rank in self.told if unwritten.get(rank) == 0)
        self.told = {rank: number for rank, number in (self.told | new).items() if rank not in again}
        said: list[News] = []
        for number in sorted(set(new.values())):
            ranks = tuple(sorted(rank for rank in new if new[rank] == number))
            said.append(Unwritten(ranks, self._folder, reason(number)))
        return [*said, Written(tuple(again), self._folder)] if again else said


def reason(number: int) -> str:
    """Put an error's number in words; it comes from another process, and may be anything."""
    return os.strerror(number) if number in errno.errorcode else f"error {number}"


def is_full(folder: Path) -> bool:
    """Whether the file system of a folder has no block left for us."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_blocks > 0 and not (found.f_bfree if os.geteuid() == 0 else found.f_bavail)


def keep_trying(write: Callable[[], OSError | None], hurried: Callable[[], bool]) -> None:
    """Write until nothing is left: for room as long as it takes, otherwise not for long."""
    until = time.monotonic() + HALT_LEDGER
    while (error := write()) is not None and not hurried():
        if error.errno != errno.ENOSPC and time.monotonic() > until:
            return
        time.sleep(ROOM_POLL)
