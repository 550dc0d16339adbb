"""When steps were committed, by epoch: what incidents are measured by."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import pairwise

from meshmend.telemetry import Committed, Epoch, Skipped

BEFORE = -1
"""The number before the first step."""
USUAL = 20
"""Steps before an incident whose pace is taken as the ordinary one."""


@dataclass
class Timeline:
    """The times of the ledger. Lines may be added in any order."""

    epochs: dict[Epoch, dict[int, float]] = field(default_factory=dict)
    """For each epoch, when each step that was summed in it was first committed."""
    tops: dict[Epoch, int] = field(default_factory=dict)
    """The highest of those steps."""

    def add(self, line: Committed | Skipped) -> None:
        """Take in one line of the ledger."""
        steps = self.epochs.setdefault(line.epoch, {})
        steps[line.step] = min(line.time, steps.get(line.step, line.time))
        self.tops[line.epoch] = max(line.step, self.tops.get(line.epoch, BEFORE))

    def top(self, epoch: Epoch) -> int:
        """The highest step that was committed in the same attempt up to this epoch."""
        return max((top for own, top in self.tops.items() if (epoch.attempt,) < own <= epoch), default=BEFORE)

    def first_new(self, epoch: Epoch, until: Epoch | None = None) -> tuple[int, float] | None:
        """The first step that was committed from this epoch on, in its attempt, and in no epoch before; and when.

        A survivor may commit a step only now that others committed in the epoch before: that step is not new.
        """
        top = max((top for own, top in self.tops.items() if (epoch.attempt,) < own < epoch), default=BEFORE)
        end = until or Epoch(epoch.attempt + 1)
        for own in sorted(own for own, high in self.tops.items() if epoch <= own < end and high > top):
            return min((step, when) for step, when in self.epochs[own].items() if step > top)
        return None

    def first_since(self, attempt: int, step: int, since: float) -> float | None:
        """When a step from this one on was first committed in an attempt, since a time."""
        mine = [steps for own, steps in self.epochs.items() if own.attempt == attempt]
        times = (when for steps in mine for number, when in steps.items() if number >= step and when >= since)
        return min(times, default=None)

    def reached(self, attempt: int, step: int) -> bool:
        """Whether this step, or one after it, was committed in an attempt."""
        return any(own.attempt == attempt and top >= step for own, top in self.tops.items())

    def pace(self) -> Pace:
        """The ordinary time between commits, for any step."""
        first: dict[tuple[int, int], float] = {}
        for epoch, steps in self.epochs.items():
            for step, when in steps.items():
                key = epoch.attempt, step
                first[key] = min(when, first.get(key, when))
        keys = sorted(first)
        return Pace(keys, [first[key] for key in keys])


@dataclass(frozen=True)
class Pace:
    """All commits in order."""

    keys: list[tuple[int, int]]
    """(attempt, step)."""
    times: list[float]

    def before(self, attempt: int, step: int) -> float | None:
        """The median time between commits in the last steps before this one."""
        end = bisect_left(self.keys, (attempt, step))
        times = self.times[max(0, end - USUAL - 1) : end]
        return statistics.median(b - a for a, b in pairwise(times)) if len(times) > 1 else None
