"""Which of the workers that make no progress are killed. `run/agent/pulse.py` judges one, by its own pace.

When every worker is still, the cause is outside of them (a file system, an evaluation), and killing the last one would
lose the state: so nobody is killed. When one after another hangs in the same step, that step may just take long: so
each next one gets twice the time of the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshmend.run.supervisor.observations import HANGS


@dataclass
class HangJudge:
    """What has been seen of those that make no progress."""

    all_still_since: float | None = None
    """Since when no member has made progress, one of them for so long that it hangs."""
    step: int = -1
    hung: int = 0
    """How many have hung in this step."""

    def judge(self, still: Mapping[int, int], step: int, now: float) -> list[int]:
        """Whom to kill, given how still each member is (`RankSeen.still`)."""
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
            if level >= HANGS + self.hung:
                self.hung += 1
                killed.append(rank)
        return killed
