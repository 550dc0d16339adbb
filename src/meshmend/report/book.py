"""The lines of a ledger in their order: which count, and which were rolled back.

A run may have several **lives**: each later one goes on from a checkpoint, so it begins at a step that an earlier life
may have passed. A step belongs to the latest life that began at or before it, and lines of other lives for it are void:

    life 0   0 1 2 3 4 5 6 ✝          began at 0, all died in step 7
    life 1           4 5 6 7 8 …      began at 4 from a checkpoint: lines 4 to 6 of life 0 are void
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from meshmend.errors import JobError
from meshmend.events import Committed, Event, Opened, Skipped
from meshmend.train.lanes import Lanes

Line = Committed | Skipped


@dataclass(frozen=True)
class Book:
    """A run's ledger, sorted into lines that count, void ones and stray ones."""

    data: Lanes
    opened: dict[tuple[int, int], int]
    """From which step on a seat took part in a life, by (life, seat)."""
    starts: dict[int, int]
    """The first step of each life."""
    lines: dict[int, list[Line]] = field(default_factory=dict)
    """By step: what the workers wrote in the life that the step belongs to."""
    void: dict[tuple[int, int], Line] = field(default_factory=dict)
    """By (life, step): one line of each step that was rolled back."""
    stray: list[Line] = field(default_factory=list)
    """Lines of steps before their life began, or of a life that nobody opened."""

    @property
    def end(self) -> int:
        """The step after the last that must be there; the last life says by its begin that those before were done."""
        return max([step + 1 for step in self.lines] + [self.starts[max(self.starts)]])


def read_book(events: Iterable[Event]) -> Book:
    """Sort a run's ledger; raises where the workers did not train over the same data."""
    events = list(events)
    opened = [event for event in events if isinstance(event, Opened)]
    book = Book(_data(opened), {}, {})
    for event in opened:
        book.starts[event.life] = min(event.step, book.starts.get(event.life, event.step))
        key = event.life, event.seat
        book.opened[key] = min(event.step, book.opened.get(key, event.step))
    until = {life: min([s for later, s in book.starts.items() if later > life], default=None) for life in book.starts}
    for line in events:
        if not isinstance(line, Line):
            continue
        life, step = line.life, line.step
        if life not in book.starts or step < book.starts[life]:
            book.stray.append(line)
        elif (limit := until[life]) is not None and step >= limit:
            book.void.setdefault((life, step), line)
        else:
            book.lines.setdefault(step, []).append(line)
    return book


def seal_of(line: Line) -> str:
    """The hash of the state after a step; a skipped one leaves the state as it was."""
    return line.seal if isinstance(line, Committed) else "skipped"


def _data(opened: list[Opened]) -> Lanes:
    if not opened:
        raise JobError("these events hold no ledger: no worker has opened a job yet")
    first = opened[0]
    for other in opened:
        if _settings(other) != _settings(first):
            raise JobError(
                f"worker {first.seat} opened {_settings(first)}, but worker {other.seat} {_settings(other)}: "
                f"all workers of a run must be given the same data, batch, lanes and seed"
            )
    return Lanes(first.size, first.batch, first.lanes, first.seed)


def _settings(event: Opened) -> str:
    return f"{event.size} samples with batch={event.batch}, lanes={event.lanes}, seed={event.seed}"
