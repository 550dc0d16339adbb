"""A run's folder as it grows, for any number of readers at once."""

from __future__ import annotations

import time
from threading import Lock

from meshmend.report.history import History, Reading
from meshmend.report.page.snapshot import Snapshots, to_json

EVERY = 0.5
"""Seconds between two looks at the folder."""
SHARE = 0.1
"""Of one core at most: after a look that took long, the next one waits longer."""


class Live:
    """The newest sections of a run. Nobody looks at the folder while nobody asks."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._snapshots = Snapshots(reading.history)
        self._lock = Lock()
        self._next = 0.0
        self._texts: dict[str, str] = {}
        self._versions: dict[str, int] = {}

    @property
    def history(self) -> History:
        """What has been read so far."""
        return self._reading.history

    def refresh(self) -> None:
        """Take in what is new, unless that was done a moment ago."""
        with self._lock:
            begin = time.monotonic()
            if begin < self._next:
                return
            if self._reading.poll() or not self._texts:
                for name, section in self._snapshots.sections().items():
                    text = to_json(section)
                    if self._texts.get(name) != text:
                        self._texts[name] = text
                        self._versions[name] = self._versions.get(name, 0) + 1
            spent = time.monotonic() - begin
            self._next = begin + max(EVERY, spent / SHARE)

    def changes(self, known: dict[str, int]) -> str:
        """Return the sections that a reader does not know yet as one JSON object, and bring what it knows up to date.

        Empty if there are none.
        """
        with self._lock:
            fresh = [name for name, version in self._versions.items() if known.get(name) != version]
            known.update({name: self._versions[name] for name in fresh})
            return "{" + ",".join(f'"{name}":{self._texts[name]}' for name in fresh) + "}" if fresh else ""
