"""Which of the workers that stand still are ended: the launcher's part, who sees them all (`hang.py` sees one)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshmend.run.agent.pulse import HANGS


@dataclass
class Judge:
    """What has been seen of those that stand still."""

    since: float = 0.0
    """Since when all members have stood still, one of them for so long that it hangs; 0 while they do not."""
    _step: int = -1
    _hung: int = 0
    """How many have hung in this step."""

    def look(self, still: Mapping[int, int], step: int, now: float) -> list[int]:
        """Whom to end of the members, by how each stands still (`Pulse.still`): those that hang while others go on.

        One after another in the same step may not be at fault: what they do may just take that long. So each next one
        has twice the time of the one before.
        """
        if not still or not all(still.values()):
            self.since = 0.0
        elif not self.since and max(still.values()) >= HANGS:
            self.since = now
        if all(still.values()):
            return []  # the cause is outside of them; and the last one has the state
        if step != self._step:
            self._step, self._hung = step, 0
        ended = []
        for rank, level in still.items():
            if level >= HANGS + self._hung:
                self._hung += 1
                ended.append(rank)
        return ended
