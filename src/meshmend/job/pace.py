"""How often a checkpoint is written."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from meshmend.errors import JobError

SHORTEST = 30.0
SHARE = 0.01
"""Automatic pace: seconds between two checkpoints at least, and the share of the time that writing may take."""


class Pace:
    """When a checkpoint is due: `every` is a time ("60s", "5min", "2h"), a number of steps ("100"), or "auto".

    Automatic is at least 30 s apart, and so rare that writing takes 1 % of the time at most.

        if pace.due(step) and background.offer(state, step, about):
            pace.began(step)
    """

    def __init__(self, every: str = "auto", *, step: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        match = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?) ?(s|min|h)|auto", every.strip(), re.ASCII)
        if not match or 0 in (float(match[1] or 1), float(match[2] or 1)):
            raise JobError(f"checkpoints every {every!r}: give a time such as 60s or 5min, steps such as 100, or auto")
        self._steps = int(match[1] or 0)
        self._seconds = float(match[2]) * {"s": 1, "min": 60, "h": 3600}[match[3]] if match[2] else 0.0
        self._clock = clock
        self.cost = 0.0
        """Seconds that the last checkpoint took to write: set it from `said`."""
        self.began(step)

    def due(self, step: int) -> bool:
        """It is time; still so at the next step if the offer was refused. Steps count from 0, also after a resume."""
        if self._steps:
            return step // self._steps > self._step // self._steps
        return self._clock() - self._time >= (self._seconds or max(SHORTEST, self.cost / SHARE))

    def began(self, step: int) -> None:
        """A checkpoint of the state before `step` is being written."""
        self._step, self._time = step, self._clock()
