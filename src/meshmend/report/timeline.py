"""When steps were committed, by epoch: what incidents are measured by."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from meshmend.report.columns import Pieces
from meshmend.telemetry import Committed, Epoch, Skipped, Steps

Floats = npt.NDArray[np.float64]

BEFORE = -1
"""The number before the first step."""
USUAL = 20
"""Steps before an incident whose pace is taken as the ordinary one."""


def _times() -> Pieces:
    return Pieces("d")


@dataclass
class Timeline:
    """The times of the ledger. Lines may be added in any order."""

    epochs: dict[Epoch, Pieces] = field(default_factory=dict)
    """For each epoch, when each step that was summed in it was first committed."""
    tops: dict[Epoch, int] = field(default_factory=dict)
    """The highest of those steps."""

    def add(self, line: Committed | Skipped | Steps) -> None:
        """Take in one line of the ledger."""
        steps = self.epochs.setdefault(line.epoch, _times())
        last = line.end - 1 if isinstance(line, Steps) else line.step
        self.tops[line.epoch] = max(last, self.tops.get(line.epoch, BEFORE))
        if isinstance(line, Steps):
            for begin, end, piece in steps.parts(line.step, line.end):
                times = line.times[begin - line.step : end - line.step]
                if piece is None:
                    steps.add(begin, None, times)
                else:
                    known = piece.view(0, begin, end)
                    np.minimum(known, times, out=known)
        elif (piece := steps.at(line.step)) is None:
            steps.add(line.step, None, (line.time,))
        else:
            at = line.step - piece.start
            piece.columns[0][at] = min(line.time, piece.columns[0][at])

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
            piece = next(piece for piece in self.epochs[own] if piece.end > top + 1)
            step = max(top + 1, piece.start)
            return step, piece.columns[0][step - piece.start]
        return None

    def first_since(self, attempt: int, step: int, since: float) -> float | None:
        """When a step from this one on was first committed in an attempt, since a time."""
        found = []
        for piece in (piece for own, steps in self.epochs.items() if own.attempt == attempt for piece in steps):
            times = piece.view(0, max(step, piece.start), max(step, piece.end))
            found += [float(times[times >= since].min())] if (times >= since).any() else []
        return min(found, default=None)

    def reached(self, attempt: int, step: int) -> bool:
        """Whether this step, or one after it, was committed in an attempt."""
        return any(own.attempt == attempt and top >= step for own, top in self.tops.items())

    def commits(self, attempt: int) -> tuple[npt.NDArray[np.int64], Floats]:
        """The steps of an attempt that were committed, in order, and when each was first."""
        pieces = [piece for own, steps in self.epochs.items() if own.attempt == attempt for piece in steps]
        steps = np.concatenate([np.empty(0, np.int64), *(np.arange(piece.start, piece.end) for piece in pieces)])
        times = np.concatenate([np.empty(0), *(piece.view(0, piece.start, piece.end) for piece in pieces)])
        if (np.diff(steps) > 0).all():
            return steps, times
        order = np.lexsort((times, steps))
        steps, times = steps[order], times[order]
        first = np.ones(len(steps), bool)
        first[1:] = steps[1:] != steps[:-1]
        return steps[first], times[first]

    def between(self, attempt: int, begin: int, end: int) -> Floats:
        """When these steps of an attempt were committed; with the step before them, if there is one."""
        steps, times = self.commits(attempt)
        low, high = np.searchsorted(steps, [begin - 1, end])
        return times[low:high]

    def first(self, attempt: int) -> float | None:
        """When an attempt committed its first step."""
        own = (steps for epoch, steps in self.epochs.items() if epoch.attempt == attempt)
        return min((float(piece.columns[0][0]) for steps in own for piece in steps), default=None)

    def pace(self) -> CommitTimes:
        """The ordinary time between commits, for any step."""
        attempts: dict[int, list[Pieces]] = {}
        for epoch, steps in self.epochs.items():
            attempts.setdefault(epoch.attempt, []).append(steps)
        return CommitTimes(attempts)


@dataclass(frozen=True)
class CommitTimes:
    """All commits, by attempt."""

    attempts: dict[int, list[Pieces]]

    def before(self, attempt: int, step: int) -> float | None:
        """The median time between commits in the last steps before this one."""
        times: list[float] = []
        for own in sorted((own for own in self.attempts if own <= attempt), reverse=True):
            first: dict[int, float] = {}
            for steps in sorted(self.attempts[own], key=lambda steps: steps.pieces[-1].end, reverse=True):
                if len(first) > USUAL and steps.pieces[-1].end <= sorted(first)[-USUAL - 1]:
                    break  # all that follow end before the steps that are looked for
                for number, when in steps.last(USUAL + 1, step if own == attempt else None):
                    first[number] = min(when, first.get(number, when))
            times += [first[number] for number in sorted(first, reverse=True)]
            if len(times) > USUAL:
                break
        times = times[USUAL::-1]
        return statistics.median(b - a for a, b in pairwise(times)) if len(times) > 1 else None
