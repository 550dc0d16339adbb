"""How long the supervisor tolerates repeated failures.

**Workers that make no progress** (`run/agent/pulse.py` judges each by its own pace). When every worker is still, the
cause is outside of them (a file system, an evaluation), and killing the last one would lose the state: so the
supervisor kills none. When one worker after another hangs in the same step, that step may just take long: so each gets
twice the time of the one before. When only the first worker is busy between two steps, it may well be working for all
(an evaluation, a picture): the others wait for it much longer.

**Worlds that are lost one after another**: when to try again, and when to give up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshmend.base.clocks import START_BACKOFF, WORLD_BACKOFF
from meshmend.run.supervisor.messages import HaltReason, NoCourierEver, NoProgress
from meshmend.run.supervisor.observations import HANGS, Stillness

FIRST_ALONE = 5
"""How often the first worker's time is doubled while it alone is busy between two steps: half an hour at least."""


@dataclass
class HangJudge:
    """The history of workers that make no progress."""

    all_still_since: float | None = None
    """The time since which no member has made progress, one of them for so long that it hangs."""
    step: int = -1
    hung: int = 0
    """How many workers have hung in this step."""

    waits: int = -1
    """The last step in which the others waited for the first worker alone, and a message said so."""

    def judge(self, still: Mapping[int, Stillness], step: int, now: float, patient: int = -1) -> list[int]:
        """Return the ranks to kill, given `RankSeen.still` of each; `patient` gets `FIRST_ALONE` more doublings."""
        if not still or not all(still.values()):
            self.all_still_since = None
        elif self.all_still_since is None and any(one.hangs for one in still.values()):
            self.all_still_since = now
        if all(still.values()):
            return []
        if step != self.step:
            self.step, self.hung = step, 0
        killed = []
        for rank, one in still.items():
            if one.stopped or one.level >= HANGS + self.hung + (FIRST_ALONE if rank == patient else 0):
                self.hung += 1
                killed.append(rank)
        return killed


def start_pause(misses: int) -> float:
    """Return how long to wait after this many failed starts in a row: the cause may be temporary."""
    return min(2.0**misses / 4, START_BACKOFF)


TRIES = 8
"""How many worlds in a row may end before any courier came up, once there is a state to lose."""
IN_VAIN = 24
"""How many worlds in a row may end without completing a step."""


@dataclass
class Backoff:
    """The outcome of the last worlds."""

    fruitless: int = 0
    """Worlds in a row that ended before any courier came up."""
    in_vain: int = 0
    """Worlds in a row that ended without completing a step."""
    again: float = 0.0
    """When to try again: the cause may be temporary, or be detected meanwhile."""
    step: int = 0
    """The step in which the last world ended."""

    def failed(self, step: int, *, came_up: bool, now: float) -> None:
        """Record that a world ended in this step, and whether any of its couriers had come up."""
        self.fruitless = 0 if came_up else self.fruitless + 1
        self.in_vain = self.in_vain + 1 if step <= self.step else 0
        self.step = step
        self.again = now + min(2.0**self.fruitless / 2, WORLD_BACKOFF) if self.fruitless else 0.0

    @property
    def hopeless(self) -> HaltReason | None:
        """Why the supervisor should not open another world."""
        if self.fruitless >= TRIES:
            return NoCourierEver(TRIES)
        return NoProgress(IN_VAIN, self.step) if self.in_vain >= IN_VAIN else None
