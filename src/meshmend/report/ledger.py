"""The lines of a ledger in their order: which count, and which were rolled back.

A run may take several **attempts**: each later one resumes from a checkpoint, so it begins at a step that an earlier
one may have passed. A step belongs to the latest attempt that began at or before it; lines of other attempts are void:

    attempt 0   0 1 2 3 4 5 6 ✝          began at 0, all died in step 7
    attempt 1           4 5 6 7 8 …      began at 4 from a checkpoint: lines 4 to 6 of attempt 0 are void
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from meshmend.errors import JobError
from meshmend.job.data.lanes import Lanes
from meshmend.telemetry import Committed, Event, Opened, Skipped

Line = Committed | Skipped


@dataclass(frozen=True)
class Ledger:
    """A run's ledger, sorted into lines that count, void ones and stray ones."""

    data: Lanes
    opened: dict[tuple[int, int], int]
    """From which step on a rank took part in an attempt, by (attempt, rank)."""
    starts: dict[int, int]
    """The first step of each attempt."""
    lines: dict[int, list[Line]] = field(default_factory=dict)
    """By step: what the workers wrote in the attempt that the step belongs to."""
    void: dict[tuple[int, int], Line] = field(default_factory=dict)
    """By (attempt, step): one line of each step that was rolled back."""
    stray: list[Line] = field(default_factory=list)
    """Lines of steps before their attempt began, or of an attempt in which no worker opened a job."""

    @property
    def end(self) -> int:
        """The step after the last that must be there; where the last attempt begins, all steps before were done."""
        return max([step + 1 for step in self.lines] + [self.starts[max(self.starts)]])


def read_ledger(events: Iterable[Event]) -> Ledger:
    """Sort a run's ledger; raises if its workers did not all train on the same data."""
    events = list(events)
    opened = [event for event in events if isinstance(event, Opened)]
    ledger = Ledger(_data(opened), {}, {})
    for event in opened:
        attempt = event.epoch.attempt
        ledger.starts[attempt] = min(event.step, ledger.starts.get(attempt, event.step))
        key = attempt, event.rank
        ledger.opened[key] = min(event.step, ledger.opened.get(key, event.step))
    until = {
        attempt: min([s for later, s in ledger.starts.items() if later > attempt], default=None)
        for attempt in ledger.starts
    }
    for line in events:
        if not isinstance(line, Line):
            continue
        attempt, step = line.epoch.attempt, line.step
        if attempt not in ledger.starts or step < ledger.starts[attempt]:
            ledger.stray.append(line)
        elif (limit := until[attempt]) is not None and step >= limit:
            ledger.void.setdefault((attempt, step), line)
        else:
            ledger.lines.setdefault(step, []).append(line)
    return ledger


def digest_of(line: Line) -> str:
    """The digest of the state after a step; a skipped step leaves the state as it was."""
    return line.digest if isinstance(line, Committed) else "skipped"


def _data(opened: list[Opened]) -> Lanes:
    if not opened:
        raise JobError("these events hold no ledger: no worker has opened a job yet")
    first = opened[0]
    for other in opened:
        if _settings(other) != _settings(first):
            raise JobError(
                f"worker {first.rank} opened {_settings(first)}, but worker {other.rank} {_settings(other)}: "
                f"all workers of a run must be given the same data, batch, lanes and seed"
            )
    return Lanes(first.size, first.batch, first.lanes, first.seed)


def _settings(event: Opened) -> str:
    return f"{event.size} samples with batch={event.batch}, lanes={event.lanes}, seed={event.seed}"
