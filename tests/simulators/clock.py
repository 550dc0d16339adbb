"""Simulated time: events in order, nothing sleeps."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """A heap of calls to be made; those of one moment are made in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._asked = 0

    def monotonic(self) -> float:
        """As `time.monotonic`."""
        return self.now

    def after(self, delay: float, call: Callable[..., None], *values: Any) -> None:
        """Have something called later."""
        self._asked += 1
        heapq.heappush(self._heap, (self.now + delay, self._asked, call, values))

    def step(self, until: float) -> bool:
        """Make the next call, if there is one before `until`."""
        if not self._heap or self._heap[0][0] > until:
            return False
        self.now, _, call, values = heapq.heappop(self._heap)
        self.events += 1
        call(*values)
        return True
