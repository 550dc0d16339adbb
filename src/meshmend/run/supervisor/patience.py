"""How long the supervisor puts up with failures that repeat themselves.

**Workers that make no progress** (`run/agent/pulse.py` judges each by its own pace). When every worker is still, the
cause is outside of them (a file system, an evaluation), and killing the last one would lose the state: so nobody is
killed. When one after another hangs in the same step, that step may just take long: so each next one gets twice the
time of the one before. When only the first worker is busy between two steps, it may well do for all what one is enough
for (an evaluation, a picture): the others wait for it much longer.

**Worlds that are lost one after another**: when to try again, and when that is of no use any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshmend.base.clocks import START_BACKOFF, WORLD_BACKOFF
from meshmend.run.supervisor.messages import HaltReason, NoCourierEver, NoProgress
from meshmend.run.supervisor.observations import HANGS

FIRST_ALONE = 5
"""Doublings of its time that the first worker gets while it alone is busy between two steps: half an hour at least."""


@dataclass
class HangJudge:
    """What has been seen of those that make no progress."""

    all_still_since: float | None = None
    """Since when no member has made progress, one of them for so long that it hangs."""
    step: int = -1
    hung: int = 0
    """How many have hung in this step."""

    waits: int = -1
    """The last step in which the others waited for the first worker alone, and that was said."""

    def judge(self, still: Mapping[int, int], step: int, now: float, patient: int = -1) -> list[int]:
        """Whom to kill, given how still each member is (`RankSeen.still`), and who may take `FIRST_ALONE` longer."""
        if not still or not all(still.values()):
            self.all_still_since = None
        elif self.all_still_since is None and max(still.values()) >= HANGS:
            self.all_still_since = now
        if all(still.values()):
            return []
        if step != self.step:
            self.step, self.hung = step, 0
        killed = []
        for rank, level in still.items():
            if level >= HANGS + self.hung + (FIRST_ALONE if rank == patient else 0):
                self.hung += 1
                killed.append(rank)
        return killed


def start_pause(misses: int) -> float:
    """How long to wait after so many starts in a row that could not be carried out: what is wrong there may pass."""
    return min(2.0**misses / 4, START_BACKOFF)


TRIES = 8
"""How many worlds in a row may end before any courier came up, once there is a state to lose."""
IN_VAIN = 24
"""How many worlds in a row may end without completing a step."""


@dataclass
class Backoff:
    """What became of the last worlds."""

    fruitless: int = 0
    """Worlds in a row that ended before any courier came up."""
    in_vain: int = 0
    """Worlds in a row that ended without completing a step."""
    again: float = 0.0
    """When to try again: whatever is wrong may pass, or be noticed."""
    step: int = 0
    """The step in which the last one ended."""

    def failed(self, step: int, *, came_up: bool, now: float) -> None:
        """A world has ended in this step; whether any of its couriers had come up."""
        self.fruitless = 0 if came_up else self.fruitless + 1
        self.in_vain = self.in_vain + 1 if step <= self.step else 0
        self.step = step
        self.again = now + min(2.0**self.fruitless / 2, WORLD_BACKOFF) if self.fruitless else 0.0

    @property
    def hopeless(self) -> HaltReason | None:
        """Why there should not be another one."""
        if self.fruitless >= TRIES:
            return NoCourierEver(TRIES)
        return NoProgress(IN_VAIN, self.step) if self.in_vain >= IN_VAIN else None
