"""For how long slices of a job had one copy alone: then one more death would have cost the run its state.

Between two attempts of a run nobody has a copy: what counts then is the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meshmend.telemetry import Committed, Event, SingleCopies, Steps


@dataclass
class CopyCount:
    """A fold over events."""

    most: int = 0
    """How many slices had one copy at the same time, at most."""
    of: int = 0
    _changes: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    """By attempt."""
    _last: dict[int, float] = field(default_factory=dict)
    """When the last step of each was done."""

    def add(self, event: Event) -> None:
        """Take in an event."""
        attempt = event.epoch.attempt
        if isinstance(event, SingleCopies):
            self.most, self.of = max(self.most, event.slices), max(self.of, event.of)
            self._changes.setdefault(attempt, []).append((event.time, event.slices))
        elif isinstance(event, Committed | Steps):
            self._last[attempt] = max(self._last.get(attempt, 0.0), event.time)

    @property
    def seconds(self) -> float:
        """For how long some had one copy; what lasts until the end of an attempt counts until its last step."""
        return sum(_seconds(changes, self._last.get(attempt, 0.0)) for attempt, changes in self._changes.items())


def _seconds(changes: list[tuple[float, int]], last: float) -> float:
    total, since = 0.0, None
    for time, slices in [*sorted(changes), (last, 0)]:
        if slices and since is None:
            since = time
        elif not slices and since is not None:
            total, since = total + max(0.0, time - since), None
    return total
