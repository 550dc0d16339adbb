"""Says once that the disk of a run is full, and once that there is room again.

A run waits for room instead of ending: workers hold the step that they cannot record, the launcher its events, and a
checkpoint that cannot be written is written later. Workers may be unable to say so, because their output goes to the
same disk; the launcher has a terminal.
"""

from __future__ import annotations

import os
from pathlib import Path

from meshmend.base.clocks import ROOM_POLL
from meshmend.run.news import DiskFreed, DiskFull


class DiskWatch:
    """One run's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._full = False
        self._looked = 0.0

    def look(self, written: bool, now: float) -> DiskFull | DiskFreed | None:
        """Return a message if something changed; `written`: whether the launcher itself could write everything."""
        if written and not self._full and now - self._looked < ROOM_POLL:
            return None
        self._looked = now
        full = not written or is_full(self._folder)
        if full == self._full:
            return None
        self._full = full
        return DiskFull(self._folder) if full else DiskFreed()


def is_full(folder: Path) -> bool:
    """Whether the file system of a folder has no block left for us."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_blocks > 0 and not (found.f_bfree if os.geteuid() == 0 else found.f_bavail)
