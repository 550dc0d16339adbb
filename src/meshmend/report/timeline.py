"""When steps were committed: the clock by which incidents are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshmend.telemetry.events import Committed, Event, Skipped

ATTEMPT = 1 << 40
"""A step of a later attempt comes after every step of an earlier one: as one number, attempt · ATTEMPT + step."""
BEFORE = -1
"""The number before the first step."""
USUAL = 20
"""Steps before an incident whose pace is taken as the ordinary one."""


@dataclass(frozen=True)
class Commits:
    """All lines of the ledger in order of time."""

    lines: Sequence[Committed | Skipped]
    times: npt.NDArray[np.float64]
    numbers: npt.NDArray[np.int64]
    highest: npt.NDArray[np.int64]
    """The highest number so far, at each line."""

    @classmethod
    def of(cls, events: Sequence[Event]) -> Commits:
        """The commits among events that are in order of time."""
        lines = [event for event in events if isinstance(event, Committed | Skipped)]
        numbers = np.fromiter((line.attempt * ATTEMPT + line.step for line in lines), np.int64, len(lines))
        times = np.fromiter((line.time for line in lines), np.float64, len(lines))
        return cls(lines, times, numbers, np.maximum.accumulate(numbers) if lines else numbers)

    def top(self, time: float) -> int:
        """The highest number committed before a time."""
        at = int(np.searchsorted(self.times, time))
        return int(self.highest[at - 1]) if at else BEFORE

    def first(self, since: float, above: int) -> float | None:
        """When, since a time, a number above another was first committed by anybody."""
        begin = max(np.searchsorted(self.times, since), np.searchsorted(self.highest, above, side="right"))
        found = next((at for at in range(int(begin), len(self.lines)) if self.numbers[at] > above), None)
        return None if found is None else float(self.times[found])

    def ranks(self, time: float) -> set[int]:
        """Who computed the last step before a time."""
        at = int(np.searchsorted(self.times, time))
        return {rank for rank, _ in self.lines[at - 1].by} if at else set()

    def ordinary(self, time: float) -> float | None:
        """The median time between commits in the last steps before a time."""
        at = int(np.searchsorted(self.times, time))
        news = np.flatnonzero(np.diff(self.highest[:at], prepend=BEFORE - 1) > 0)[-USUAL - 1 :]
        return float(np.median(np.diff(self.times[news]))) if len(news) > 1 else None
