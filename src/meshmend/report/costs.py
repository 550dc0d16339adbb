"""What an incident cost: the lanes that others computed in place of the dead, and the steps that were done again."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshmend.report.fold import Level, State
from meshmend.report.incidents import Incident
from meshmend.report.ledger import Ledger


@dataclass(frozen=True)
class Cost:
    """Of one incident."""

    lost: dict[int, int] = field(default_factory=dict)
    """Lanes of the interrupted step that were taken from a rank, by rank."""
    taken: dict[int, int] = field(default_factory=dict)
    """Who computed them instead."""
    step: int = -1
    """The step in which that was; -1 if no lane changed hands."""
    repeated: tuple[int, int] = (0, 0)
    """From and until which step the run was done again, from a checkpoint."""
    lanes: int = 0
    """Lanes that had to be computed in place of others, or again."""
    samples: int = 0
    """The samples in them."""

    @property
    def steps(self) -> int:
        """Steps that were done again."""
        return self.repeated[1] - self.repeated[0]


def cost(incident: Incident, state: State, ledger: Ledger) -> Cost:
    """Work it out from the ledger."""
    if incident.level is Level.CHECKPOINT:
        return _of_resume(incident, state, ledger)
    found = state.timeline.first_new(incident.epoch) if incident.epoch != incident.was else None
    if found is None:
        return Cost()
    step, attempt = found[0], incident.epoch.attempt
    before, after = (lanes_of(ledger, attempt, one) for one in (step - 1, step))
    if not before or not after:
        return Cost()
    lost = {rank: more for rank in before if (more := before[rank] - after.get(rank, 0)) > 0}
    taken = {rank: more for rank in after if (more := after[rank] - before.get(rank, 0)) > 0}
    if incident.joins or not lost:
        return Cost()  # lanes were divided anew, and nothing was computed in place of another
    lanes = sum(lost.values())
    return Cost(lost, taken, step, lanes=lanes, samples=lanes * ledger.data.lane_size)


def lanes_of(ledger: Ledger, attempt: int, step: int) -> dict[int, int]:
    """How many lanes each rank computed in a step's last sum; empty if that is not known."""
    pieces = ledger.attempts.get(attempt)
    piece = pieces.at(step) if pieces is not None else None
    found: dict[int, int] = {}
    for rank, count in piece.tag[-1] if piece is not None else ():
        found[rank] = found.get(rank, 0) + count
    return found


def _of_resume(incident: Incident, state: State, ledger: Ledger) -> Cost:
    attempt = incident.epoch.attempt
    start = ledger.starts.get(attempt)
    tops = [top for epoch, top in state.timeline.tops.items() if epoch.attempt < attempt]
    if start is None or not tops or max(tops) < start:
        return Cost()
    steps = max(tops) + 1 - start
    lanes = steps * ledger.data.lanes
    return Cost(repeated=(start, start + steps), lanes=lanes, samples=steps * ledger.data.batch)
