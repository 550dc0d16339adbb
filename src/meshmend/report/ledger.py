"""The lines of a ledger in their order: which count, and which were rolled back.

A run may take several **attempts**: each later one resumes from a checkpoint, so it begins at a step that an earlier
one may have passed. A step belongs to the latest attempt that began at or before it; lines of other attempts are void:

    attempt 0   0 1 2 3 4 5 6 ✝          began at 0, all died in step 7
    attempt 1           4 5 6 7 8 …      began at 4 from a checkpoint: lines 4 to 6 of attempt 0 are void

One more line may be void. Where a network breaks, the workers of the smaller side finish the step that they have the
total of, save it and stop. The others may lack that total: when a launcher attaches to them later, they do it again.

All workers write the same, so a step is kept once, in columns; where the lines of workers differ, the step is **odd**,
and its lines are looked up afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from math import nan

import numpy as np
import numpy.typing as npt

from meshmend.base.status import HALTED
from meshmend.errors import JobError
from meshmend.job.data.lanes import Lanes
from meshmend.report.columns import Piece, Pieces
from meshmend.telemetry import Committed, Ended, Epoch, Event, Opened, Skipped, Steps

Line = Committed | Skipped
Codes = npt.NDArray[np.uint64]
SKIPPED = (1 << 64) - 1
"""In place of the digest of a step that was skipped."""
SKIP = "skipped"


@dataclass(frozen=True)
class Span:
    """Steps of one attempt that follow one another, computed by the same workers."""

    attempt: int
    begin: int
    end: int
    piece: Piece

    @property
    def by(self) -> list[list[int]]:
        """Which rank computed which lanes, in the first sum of each step."""
        return self.sums[0]

    @property
    def sums(self) -> list[list[list[int]]]:
        """Which rank computed which lanes, in each sum of a step."""
        found: list[list[list[int]]] = self.piece.tag
        return found

    @property
    def codes(self) -> Codes:
        """The digests of the states after the steps, as numbers."""
        return self.piece.view(0, self.begin, self.end)

    @property
    def odd(self) -> list[int]:
        """The steps about which the workers wrote different things."""
        steps: list[int] = (self.begin + np.flatnonzero(self.piece.view(1, self.begin, self.end))).tolist()
        return steps

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """The requested metric; NaN if a step has none."""
        return self.piece.view(2, self.begin, self.end)


@dataclass
class Ledger:
    """A run's ledger, by attempt."""

    metric: str = ""
    """The metric that is kept."""
    data: Lanes = field(init=False)
    opened: dict[tuple[int, int], int] = field(default_factory=dict)
    """From which step on a rank took part in an attempt, by (attempt, rank)."""
    starts: dict[int, int] = field(default_factory=dict)
    """The first step of each attempt."""
    attempts: dict[int, Pieces] = field(default_factory=dict)
    """What was written of each step: the digest, whether lines differ, and the metric."""
    texts: dict[int, str] = field(default_factory=dict)
    """Digests that are not twelve hexadecimal digits, by their code."""
    metrics: set[str] = field(default_factory=set)
    """The names of all metrics that there are."""
    _stops: list[Epoch] = field(default_factory=list)
    """When a launcher stopped the run before its end."""
    _entries: set[tuple[Epoch, int]] = field(default_factory=set)
    """When workers took part for the first time, and in which step."""
    _openings: dict[tuple[int, int], Opened] = field(default_factory=dict)
    """The earliest of each attempt and rank."""
    _others: list[Opened] = field(default_factory=list)
    """The first that opened another job than its first one did."""

    def take(self, event: Event) -> None:
        """Take in any event."""
        if isinstance(event, Opened):
            self._entries.add((event.epoch, event.step))
            key = event.epoch.attempt, event.rank
            first = self._openings.setdefault(key, event)
            if event.step < first.step:
                self._openings[key] = event
            if not self._others and _settings(event) != _settings(next(iter(self._openings.values()))):
                self._others.append(event)
        elif isinstance(event, Line | Steps):
            self.add(event)
        elif isinstance(event, Ended) and event.status == HALTED:
            self._stops.append(event.epoch)

    @property
    def is_open(self) -> bool:
        """Whether a worker has opened a job."""
        return bool(self._openings)

    def settle(self) -> None:
        """Work out where attempts began; raises if no worker has opened a job, or not all the same one."""
        self.data = _data([*self._openings.values(), *self._others])
        for (attempt, rank), one in self._openings.items():
            self.starts[attempt] = min(one.step, self.starts.get(attempt, one.step))
            self.opened[attempt, rank] = one.step

    def add(self, line: Line | Steps) -> None:
        """Take in a line."""
        pieces = self.attempts.setdefault(line.epoch.attempt, Pieces("QBd" if self.metric else "QB"))
        if isinstance(line, Steps):
            self._add_steps(pieces, line)
            return
        code = self.code_of(digest_of(line))
        if (piece := pieces.at(line.step)) is not None:
            at = line.step - piece.start
            piece.columns[1][at] |= piece.columns[0][at] != code or piece.tag != sums_of(line)
            return
        metrics = line.metrics if isinstance(line, Committed) else {}
        self.metrics |= metrics.keys()
        pieces.add(
            line.step, sums_of(line), (code,), (0,), *([(metrics.get(self.metric, nan),)] if self.metric else [])
        )

    def _add_steps(self, pieces: Pieces, line: Steps) -> None:
        self.metrics |= line.values_of.keys()
        for begin, end, piece in pieces.parts(line.step, line.end):
            own = slice(begin - line.step, end - line.step)
            if piece is not None:
                flags = piece.view(1, begin, end)
                flags |= (piece.view(0, begin, end) != line.digests[own]) | (piece.tag != sums_of(line))
                continue
            none = np.zeros(end - begin, np.uint8)
            values = line.values_of.get(self.metric, np.full(line.count, nan, np.float32))[own]
            pieces.add(begin, sums_of(line), line.digests[own], none, *([values] if self.metric else []))

    def code_of(self, digest: str) -> int:
        """A digest as a number."""
        if digest == SKIP:
            return SKIPPED
        if len(digest) == 12:
            try:
                return int(digest, 16)
            except ValueError:
                pass
        code = int.from_bytes(hashlib.blake2b(digest.encode(), digest_size=7).digest()) | 1 << 60
        self.texts[code] = digest
        return code

    def text_of(self, code: int) -> str:
        """The digest that a number stands for."""
        return self.texts.get(code, f"{code:012x}")

    # ── which lines count ──

    def is_void(self, line: Line) -> bool:
        """Whether the run stopped after this line, and went on in the same attempt from a step before it."""
        return any(
            line.epoch.attempt == stop.attempt == entry.attempt
            and line.epoch.world <= stop.world < entry.world
            and step <= line.step
            for stop in self._stops
            for entry, step in self._entries
        )

    def resolve(self, events: Iterable[Event], odd: Collection[tuple[int, int]]) -> dict[tuple[int, int], list[Line]]:
        """The lines of steps about which workers wrote different things, without void ones."""
        found = look_up(events, {*odd}) if odd else {}
        return {key: [line for line in lines if not self.is_void(line)] or lines for key, lines in found.items()}

    def until(self, attempt: int) -> int | None:
        """Where an attempt was rolled back to; None if it was not."""
        return min((start for later, start in self.starts.items() if later > attempt), default=None)

    def counting(self) -> list[Span]:
        """The steps that count, in their order."""
        found: list[Span] = []
        for attempt in self.starts:
            found += self._spans(attempt, self.starts[attempt], self.until(attempt))
        return sorted(found, key=lambda span: span.begin)

    def void(self) -> list[Span]:
        """The steps that were rolled back."""
        found: list[Span] = []
        for attempt, start in self.starts.items():
            if (until := self.until(attempt)) is not None:
                found += self._spans(attempt, max(start, until), None)
        return found

    def stray(self) -> list[Span]:
        """Steps before their attempt began, or of an attempt in which no worker opened a job."""
        return [span for attempt in self.attempts for span in self._spans(attempt, None, self.starts.get(attempt))]

    def _spans(self, attempt: int, begin: int | None, end: int | None) -> Iterator[Span]:
        for piece in self.attempts.get(attempt, ()):
            low = piece.start if begin is None else max(begin, piece.start)
            high = piece.end if end is None else min(end, piece.end)
            if low < high:
                yield Span(attempt, low, high, piece)

    @property
    def end(self) -> int:
        """The step after the last that must be there; where the last attempt begins, all steps before were done."""
        return max([self.starts[max(self.starts)], *(span.end for span in self.counting())])


def read_ledger(events: Iterable[Event], metric: str = "") -> Ledger:
    """Sort a run's ledger; raises if its workers did not all train on the same data."""
    ledger = Ledger(metric)
    for event in events:
        ledger.take(event)
    ledger.settle()
    return ledger


def look_up(events: Iterable[Event], steps: set[tuple[int, int]]) -> dict[tuple[int, int], list[Line]]:
    """All lines of these steps, by (attempt, step)."""
    found: dict[tuple[int, int], list[Line]] = {}
    wanted: dict[int, npt.NDArray[np.int64]] = {}
    for attempt in {attempt for attempt, _ in steps}:
        wanted[attempt] = np.array(sorted(step for own, step in steps if own == attempt), np.int64)
    for event in events:
        if isinstance(event, Steps) and event.epoch.attempt in wanted:
            mine = wanted[event.epoch.attempt]
            low, high = np.searchsorted(mine, [event.step, event.end])
            for step in mine[low:high].tolist():
                found.setdefault((event.epoch.attempt, step), []).append(event.line_of(step))
        elif isinstance(event, Line) and (event.epoch.attempt, event.step) in steps:
            found.setdefault((event.epoch.attempt, event.step), []).append(event)
    return found


def sums_of(line: Line | Steps) -> list[list[list[int]]]:
    """Which rank computed which lanes, for each sum of a step; a step is skipped in its first."""
    return [line.by] if isinstance(line, Skipped) else [line.by, *line.more]


def digest_of(line: Line) -> str:
    """The digest of the state after a step; a skipped step leaves the state as it was."""
    return line.digest if isinstance(line, Committed) else SKIP


def _data(opened: list[Opened]) -> Lanes:
    if not opened:
        raise JobError("these events contain no ledger: no worker has opened a job yet")
    first = opened[0]
    for other in opened:
        if _settings(other) != _settings(first):
            raise JobError(
                f"worker {first.rank} opened {_settings(first)}, but worker {other.rank} {_settings(other)}: "
                f"all workers of a run must be given the same data, batch, lanes and seed"
            )
    return Lanes(first.size, first.batch, first.lanes, first.seed, in_order=first.in_order)


def _settings(event: Opened) -> str:
    return f"{event.size} samples with batch={event.batch}, lanes={event.lanes}, seed={event.seed}"
