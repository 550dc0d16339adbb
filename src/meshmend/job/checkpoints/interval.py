"""When a checkpoint is due: what `--checkpoint-every` means."""

from __future__ import annotations

import time
from collections.abc import Callable

from meshmend.base.clocks import CHECKPOINT_PAUSE
from meshmend.base.units import read_duration
from meshmend.errors import JobError, MeshmendError

SHARE = 0.01
"""Automatic pace: the largest share of the time to spend on writing."""


def read_interval(text: str) -> tuple[int, float]:
    """The steps or the seconds between two checkpoints, and 0 for the other; both are 0 if the pace is automatic."""
    text = text.strip()
    if text in ("", "auto"):
        return 0, 0.0
    try:
        found = (int(text), 0.0) if text.isascii() and text.isdigit() else (0, read_duration(text))
    except (MeshmendError, ValueError):  # of far too many digits
        found = 0, 0.0
    if not any(found):
        raise JobError(
            f"checkpoints every {text!r}: give a time such as 60s or 5min, a number of steps such as 100, or auto"
        )
    return found


class CheckpointInterval:
    """When a checkpoint is due: `every` is a time ("60s", "5min", "2h"), a number of steps ("100"), or "auto".

    Automatic is at least 30 s apart, and so rare that writing takes at most 1 % of the time.

        if pace.due(step) and background.offer(snapshot, step, about):
            pace.began(step)
    """

    def __init__(self, every: str = "auto", *, step: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps, self._seconds = read_interval(every)
        self._clock = clock
        self.cost = 0.0
        """How many seconds the last checkpoint took to write."""
        self.began(step)

    def due(self, step: int) -> bool:
        """Whether it is time; still true at the next step if the offer was refused. Steps count from 0."""
        if self._steps:
            return step // self._steps > self._step // self._steps
        return self._clock() - self._time >= (self._seconds or max(CHECKPOINT_PAUSE, self.cost / SHARE))

    def began(self, step: int) -> None:
        """A checkpoint of the state before `step` is being written."""
        self._step, self._time = step, self._clock()
