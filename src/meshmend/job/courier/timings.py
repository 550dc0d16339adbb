"""How long each phase of a repair takes, as one courier sees it: from the failure to the next round's total."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from meshmend.job.protocol import (
    Begin,
    Cast,
    Enlist,
    Gather,
    Payload,
    Reduce,
    Revoke,
    Shrink,
    Wait,
    Work,
)
from meshmend.job.sharding import Compare, Give, Measure, Meet, Prepare, Scatter, ShardedOperation, Update


class RepairPhase(StrEnum):
    """A part of a repair; the values are those of events and reports."""

    REVOKE = "revoke"
    SHRINK = "shrink"
    REFORM = "re-form"
    EXCHANGE = "exchange"
    ROLL_FORWARD = "roll forward"
    STATE = "state"
    RECOMPUTE = "recompute"
    FIRST_COMMIT = "first commit"


PHASES: dict[type[ShardedOperation], RepairPhase] = {
    Revoke: RepairPhase.REVOKE,
    Shrink: RepairPhase.SHRINK,
    Begin: RepairPhase.REFORM,
    Gather: RepairPhase.EXCHANGE,
    Enlist: RepairPhase.EXCHANGE,
    Work: RepairPhase.RECOMPUTE,
    Reduce: RepairPhase.FIRST_COMMIT,
    Prepare: RepairPhase.RECOMPUTE,
    Scatter: RepairPhase.FIRST_COMMIT,
    Meet: RepairPhase.FIRST_COMMIT,
}


def phase_of(operation: ShardedOperation, before: RepairPhase | None = None) -> RepairPhase | None:
    """The phase that an operation belongs to, after this one; None for a spare's waiting."""
    if isinstance(operation, Cast):
        return RepairPhase.ROLL_FORWARD if operation.what is Payload.TOTAL else RepairPhase.STATE
    if isinstance(
        operation, (Measure, Update, Compare, Give)
    ):  # of this round, or of one that was decided before a failure
        return before if before is RepairPhase.FIRST_COMMIT else RepairPhase.ROLL_FORWARD
    return PHASES.get(type(operation))


@dataclass
class Stopwatch:
    """Runs while a repair is under way; `done` receives the times when the next total has arrived."""

    done: Callable[[float, dict[str, float]], None]
    noticed: float = 0.0
    """When the failure was noticed; 0 while nothing is being repaired."""
    times: dict[str, float] = field(default_factory=dict)
    """Seconds by phase."""
    _phase: RepairPhase | None = None
    _since: float = 0.0

    def failed(self, when: float = 0.0) -> None:
        """An operation failed: a repair begins, or begins again."""
        self._stop()
        if not self.noticed:
            self.noticed, self.times = when or time.time(), {}

    def began(self, operation: ShardedOperation) -> None:
        """An operation begins, so the one before it has succeeded."""
        phase = phase_of(operation, self._phase)
        over = self._phase is RepairPhase.FIRST_COMMIT and phase is not RepairPhase.FIRST_COMMIT
        self._stop()
        if self.noticed and over:
            self.done(self.noticed, self.times)
        if over or isinstance(operation, Wait):  # a spare has no part in the next total
            self.noticed = 0.0
        if isinstance(operation, Revoke) and not self.noticed:
            self.failed()  # nothing failed, but the total showed a state that differs
        if self.noticed:
            self._phase, self._since = phase, time.time()

    def _stop(self) -> None:
        if self.noticed and self._phase is not None:
            self.times[self._phase.value] = self.times.get(self._phase.value, 0.0) + time.time() - self._since
        self._phase = None
