"""Finds a worker that stands still, with no number for the user to choose.

A worker's pace is the longest pause between two signs of progress that it has shown lately. One that owes its courier
an answer and has shown nothing for `PATIENCE` times its own pace, and for at least `LEAST` seconds, hangs. Before it
has been seen going at a pace (the first rounds compile) it is never judged.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

PATIENCE = 4.0
LEAST = 5.0
"""Seconds: on a machine with more processes than cores, even quick workers can be kept from running for a while."""
SEEN = 8
"""Pauses that must have been seen before a worker is judged."""
RECENT = 64


@dataclass
class Pulse:
    """One worker's signs of progress."""

    progress: int = -1
    since: float = 0.0
    pauses: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def hangs(self, progress: int, owes: bool, now: float) -> bool:
        """Look at a worker: its progress counter, and whether its courier waits for it."""
        if progress != self.progress:
            if self.progress >= 0:
                self.pauses.append(now - self.since)
            self.progress, self.since = progress, now
            return False
        if not owes or len(self.pauses) < SEEN:
            return False
        return now - self.since > max(LEAST, PATIENCE * max(self.pauses))
