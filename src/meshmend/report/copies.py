"""For how long slices of a sharded job had one copy alone: then one more death would have cost the run its state."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshmend.telemetry import Committed, Event, SingleCopies, Steps


@dataclass
class CopyCount:
    """A fold over events."""

    most: int = 0
    """How many slices had one copy at the same time, at most."""
    of: int = 0
    _changes: list[tuple[float, int]] = field(default_factory=list)
    _last: float = 0.0
    """When the last step was done."""

    def add(self, event: Event) -> None:
        """Take in an event."""
        if isinstance(event, SingleCopies):
            self.most, self.of = max(self.most, event.slices), max(self.of, event.of)
            self._changes.append((event.time, event.slices))
        elif isinstance(event, Committed | Steps):
            self._last = max(self._last, event.time)

    @property
    def seconds(self) -> float:
        """For how long some had one copy; what lasts until the end counts until the last step."""
        total, since = 0.0, None
        for time, slices in [*sorted(self._changes), (self._last, 0)]:
            if slices and since is None:
                since = time
            elif not slices and since is not None:
                total, since = total + max(0.0, time - since), None
        return total
