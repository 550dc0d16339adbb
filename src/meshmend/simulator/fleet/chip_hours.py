"""Where a job's chip-hours go: useful work, or lost to a named cause; together they are all there were.

Work is useful once and for all when a checkpoint has been written after it; a rollback turns what was done since the
last one into a loss. Checkpoints are written after every `interval` of working time and stop the job for `cost`.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple


class Cause(StrEnum):
    """What chip-hours are lost to."""

    STOPPED = "waiting for repair"
    DETECT = "noticing"
    ROLLBACK = "work done twice"
    RESTART = "restarting"
    REROUTE = "rerouting"
    HOLE = "slower or smaller mesh"
    CHECKPOINT = "checkpoints"
    SPARES = "spares standing by"


class Stretch(NamedTuple):
    """A time in which a job's state did not change, for charts."""

    begin: float
    end: float
    speed: float
    useful: float
    """Chip-hours of useful work up to its begin."""


class Account:
    """One job's clock, and what became of its chips' time so far."""

    def __init__(self, chips: int, interval: float, cost: float, *, trace: bool = False) -> None:
        self.chips, self.interval, self.cost = chips, interval, cost
        self.now, self.speed = 0.0, 1.0
        self.useful, self.unsaved = 0.0, 0.0
        self.lost = dict.fromkeys(Cause, 0.0)
        self.stretches: list[Stretch] | None = [] if trace else None
        self._pauses: list[tuple[Cause, float]] = []
        self._phase = 0.0
        """Time since the last checkpoint was written, pauses left out."""

    def pause(self, *pauses: tuple[Cause, float]) -> None:
        """Stand still for these one after another, instead of what is left of earlier ones."""
        self._pauses = [pause for pause in pauses if pause[1] > 0]

    def left(self, cause: Cause) -> tuple[Cause, float]:
        """What is left of a pause."""
        return cause, sum(length for other, length in self._pauses if other is cause)

    def rollback(self) -> None:
        """Lose what was done since the last checkpoint."""
        self.useful -= self.unsaved
        self.lost[Cause.ROLLBACK] += self.unsaved
        self.saved()

    def run(self, until: float) -> None:
        """Go on to this hour: pauses first, then work, or stand still where the speed is 0."""
        while self._pauses and self.now < until:
            cause, length = self._pauses.pop(0)
            if self.now + length > until:
                self._pauses.insert(0, (cause, self.now + length - until))
                self._stand(until, cause)
                return
            self._stand(self.now + length, cause)
            if cause is Cause.CHECKPOINT:
                self.saved()
        if self.now < until and self.speed:
            self._work(until)
        elif self.now < until:
            self._stand(until, Cause.STOPPED)

    def saved(self) -> None:
        """A checkpoint has been written."""
        self.unsaved, self._phase = 0.0, 0.0

    def _stand(self, until: float, cause: Cause) -> None:
        self.lost[cause] += (until - self.now) * self.chips
        self._note(until, 0.0)
        self.now = until

    def _work(self, until: float) -> None:
        self._note(until, self.speed)
        begin, end = self._phase, self._phase + until - self.now
        working, self._phase, written = self._working(end)
        before, _, _ = self._working(begin)
        gained = (working - before) * self.chips * self.speed
        self.useful += gained
        since = min(self._phase, self.interval) * self.chips * self.speed
        self.unsaved = since if written else self.unsaved + gained
        self.lost[Cause.CHECKPOINT] += (end - begin - working + before) * self.chips
        self.lost[Cause.HOLE] += (working - before) * self.chips * (1 - self.speed)
        self.now = until

    def _working(self, phase: float) -> tuple[float, float, int]:
        """Of a time since a checkpoint: the part spent on work, the phase it ends in, and checkpoints written."""
        if self.interval == math.inf:
            return phase, phase, 0
        cycle = self.interval + self.cost
        written = int(phase // cycle)
        rest = phase - written * cycle
        return written * self.interval + min(rest, self.interval), rest, written

    def _note(self, until: float, speed: float) -> None:
        if self.stretches is not None:
            self.stretches.append(Stretch(self.now, until, speed, self.useful))
