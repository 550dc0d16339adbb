"""How long each part of a repair takes, as one courier sees it: from the failure to the next round's total."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from meshmend.job.protocol.protocol import Begin, Cast, Enlist, Gather, Operation, Revoke, Shrink, Sum, Wait, Work

NAMES: dict[type[Operation], str] = {
    Revoke: "revoke",
    Shrink: "shrink",
    Begin: "re-form",
    Gather: "exchange",
    Enlist: "exchange",
    Work: "recompute",
    Sum: "first commit",
}


def name_of(operation: Operation) -> str:
    """What a part of a repair is called."""
    if isinstance(operation, Cast):
        return "roll forward" if operation.what == "total" else "state"
    return NAMES.get(type(operation), "")


@dataclass
class Stopwatch:
    """Runs while something is being repaired; `done` gets the times when the next total is there."""

    done: Callable[[float, dict[str, float]], None]
    noticed: float = 0.0
    """When the failure was; 0 while nothing is being repaired."""
    times: dict[str, float] = field(default_factory=dict)
    _name: str = ""
    _since: float = 0.0

    def failed(self, when: float = 0.0) -> None:
        """An operation failed: a repair begins, or begins again."""
        self._stop()
        if not self.noticed:
            self.noticed, self.times = when or time.time(), {}

    def began(self, operation: Operation) -> None:
        """An operation begins, so the one before it is through."""
        over = self._name == "first commit"
        self._stop()
        if self.noticed and over:
            self.done(self.noticed, self.times)
        if over or isinstance(operation, Wait):  # a spare has no part in the next total
            self.noticed = 0.0
        if isinstance(operation, Revoke) and not self.noticed:
            self.failed()  # nothing failed, but the total showed a state that differs
        if self.noticed:
            self._name, self._since = name_of(operation), time.time()

    def _stop(self) -> None:
        if self.noticed and self._name:
            self.times[self._name] = self.times.get(self._name, 0.0) + time.time() - self._since
        self._name = ""
