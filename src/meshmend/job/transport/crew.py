"""Threads that add up and copy large messages in parallel, if cores are idle.

Every thread has its own range, so that the bits do not depend on how many there are. There are never more threads than
idle cores: the time that cores were idle since the last sum is read from the kernel and divided between the couriers of
this host. If workers compute on all cores, a courier adds alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meshmend.base.clocks import IDLE_COUNT

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

STAT = Path("/proc/stat")
STRETCH = 1 << 22
"""Bytes that are worth a thread."""
TICKS = os.sysconf("SC_CLK_TCK")


class Crew:
    """A courier's threads."""

    def __init__(self, couriers: int, cores: int | None = None) -> None:
        """`couriers` share this host's cores, all of them by default."""
        self._couriers = max(couriers, 1)
        self._cores = len(os.sched_getaffinity(0)) if cores is None else cores
        self._seen = _idle(), time.monotonic()
        self._hands = 1
        self._pool: ThreadPoolExecutor | None = None

    @property
    def hands(self) -> int:
        """How many threads may work now."""
        if self._cores <= self._couriers:
            return 1
        (before, then), now = self._seen, time.monotonic()
        if now - then >= IDLE_COUNT:
            idle = _idle()  # not each time: with many cores, the kernel writes a long page for it
            share = int((idle - before) / (now - then)) // self._couriers
            self._hands = max(1, min(self._cores // self._couriers, 1 + share))
            self._seen = idle, now
        return self._hands

    def divide(self, work: Callable[[slice], None], whole: slice, itemsize: int) -> None:
        """Do the work for a range of numbers, in one piece or in several at the same time."""
        size = whole.stop - whole.start
        worth = size * itemsize // STRETCH
        hands = min(self.hands, worth) if worth > 1 else 1
        if hands <= 1:
            work(whole)
            return
        bounds = [whole.start + size * hand // hands for hand in range(hands + 1)]
        self._all(work, [slice(*bounds[hand : hand + 2]) for hand in range(hands)])

    def _all(self, work: Callable[[slice], None], stretches: Sequence[slice]) -> None:
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor  # few couriers need it, and it loads `logging`

            self._pool = ThreadPoolExecutor(self._cores, thread_name_prefix="meshmend sums")
        others = [self._pool.submit(work, one) for one in stretches[1:]]
        work(stretches[0])
        for other in others:
            other.result()


def _idle() -> float:
    """Return the seconds that all cores together have been idle since the host booted; 0 if that is unknown."""
    try:
        words = STAT.read_text().split("\n", 1)[0].split()
        return int(words[4]) / TICKS
    except (OSError, ValueError, IndexError):
        return 0.0
