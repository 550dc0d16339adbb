"""How long workers waited for input: the share of the time between their commits, from their lines of the ledger."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from meshmend.telemetry import Committed, Event, Steps

Numbers = npt.NDArray[np.floating]


@dataclass
class Stalls:
    """A fold over events; events of one worker come in order."""

    _last: dict[tuple[int, int], tuple[int, float]] = field(default_factory=dict)
    """The last step of each attempt and rank, and when it was done."""
    _sums: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By rank: the seconds waited, and the seconds in all."""

    def add(self, event: Event) -> None:
        """Take in an event."""
        if isinstance(event, Committed):
            self._take(event, np.array([event.time]), np.array([event.stall]))
        elif isinstance(event, Steps):
            self._take(event, event.times, event.waited)

    def _take(self, event: Committed | Steps, times: Numbers, waited: Numbers) -> None:
        key, end = (event.epoch.attempt, event.rank), event.step + len(times)
        before, at = self._last.get(key, (-1, 0.0))
        self._last[key] = end, float(times[-1])
        if before == event.step:
            times = np.concatenate([[at], times])
        else:
            waited = waited[1:]  # when the first one began is not known
        own, whole = self._sums.get(event.rank, (0.0, 0.0))
        self._sums[event.rank] = own + float(waited.sum()), whole + max(0.0, float(times[-1] - times[0]))

    @property
    def share(self) -> float:
        """Of the time of all workers."""
        whole = sum(seconds for _, seconds in self._sums.values())
        return min(1.0, sum(own for own, _ in self._sums.values()) / whole) if whole else 0.0

    @property
    def shares(self) -> dict[int, float]:
        """Of each worker's time, by rank."""
        return {rank: min(1.0, own / whole) for rank, (own, whole) in sorted(self._sums.items()) if whole}
