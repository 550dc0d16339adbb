"""The audit: proof, from events alone, that each lane of each step and each sample of each epoch was counted once.

The couriers check this in every round while the job runs. The audit does not trust them: it takes what the workers
recorded, works out again which samples every lane holds (`Lanes`), and adds up. A **finding** is one sentence that
says what is wrong; a run without findings is clean.

Events are read one after another and kept in columns: a week of steps takes a few hundred megabytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise

import numpy as np

from meshmend.errors import FormatError
from meshmend.report.copies import CopyCount
from meshmend.report.evaluations import Evaluations
from meshmend.report.findings import (
    MOST,
    Counts,
    Row,
    content_of,
    disagreements,
    lanes_and_ranks,
    missing,
    samples,
    stray_lines,
)
from meshmend.report.jobs import JobEvents
from meshmend.report.ledger import SKIPPED, Ledger, Line, Span, digest_of, read_ledger, sums_of
from meshmend.report.stalls import Stalls
from meshmend.telemetry import Event, Events, Skipped


@dataclass(frozen=True, kw_only=True)
class Account:
    """What the ledger of a run adds up to."""

    steps: int
    """Steps in the ledger, skipped ones included."""
    size: int
    """Samples in an epoch."""
    batch: int
    epochs: float
    samples: int
    """Samples that were trained on."""
    lanes: int
    """Lanes that were counted, over all sums of all steps."""
    repeated: int
    """Steps that were rolled back and done again because the run was resumed from a checkpoint before them."""
    skipped: int
    """Steps whose sum was not finite and was left out, as the user asked; their samples count as seen once."""
    workers: int
    """Ranks that took part."""
    findings: list[str]
    digest: str
    """The digest of the state after the last step."""
    stall: float = field(default=0.0, compare=False)
    """The share of the workers' time in which they waited for input: no part of the proof."""
    stalls: dict[int, float] = field(default_factory=dict, compare=False)
    """The same for each worker, by rank."""
    single: float = field(default=0.0, compare=False)
    """For how many seconds slices of a sharded job had one copy alone."""
    slices: tuple[int, int] = field(default=(0, 0), compare=False)
    """How many at a time, at most, and of how many."""
    evaluations: int = 0
    """Evaluations of other data, repeated ones included."""

    @property
    def clean(self) -> bool:
        """Whether there are no findings."""
        return not self.findings


@dataclass
class Audit:
    """The audit of one job as a fold over its events, so that a live run can be audited as it goes."""

    ledger: Ledger = field(default_factory=Ledger)
    stalls: Stalls = field(default_factory=Stalls)
    evaluations: Evaluations = field(default_factory=Evaluations)
    copies: CopyCount = field(default_factory=CopyCount)

    def add(self, event: Event) -> None:
        """Take in an event."""
        self.ledger.take(event)
        self.stalls.add(event)
        self.evaluations.add(event)
        self.copies.add(event)

    def account(self, again: Iterable[Event]) -> Account:
        """What the events so far add up to; `again` are the same events, to look up lines that differ."""
        ledger = self.ledger
        ledger.settle()
        spans, end = ledger.counting(), ledger.end
        odd = [(span.attempt, step) for span in spans for step in span.odd]
        stray = [*islice(chain.from_iterable(_steps(span) for span in ledger.stray()), MOST)]
        lines = ledger.resolve(again, {*odd[:MOST], *stray})
        rows = [*_rows(ledger, spans, {key: _most(lines[key]) for key in odd[:MOST]})]
        odd = [key for key in odd if key not in lines or len({content_of(line) for line in lines[key]}) > 1]
        for row in rows:
            for by in row.sums:
                if any(len(run) != 2 or min(run) < 0 for run in by):
                    raise FormatError(f"step {row.begin}: by={by} is not a list of [rank, number of lanes]")
        counts = Counts.of(rows, ledger.data, end)
        skipped = sum(row.skipped for row in rows)
        return Account(
            steps=sum(row.end - row.begin for row in rows),
            size=ledger.data.size,
            batch=ledger.data.batch,
            epochs=end * ledger.data.batch / ledger.data.size,
            samples=counts.total * ledger.data.lane_size - skipped * ledger.data.batch,
            lanes=sum((row.end - row.begin) * row.all_lanes for row in rows),
            repeated=sum(span.end - span.begin for span in ledger.void()),
            skipped=skipped,
            workers=len({rank for _, rank in ledger.opened}),
            findings=[
                *missing(rows, end),
                *stray_lines(ledger, lines, stray),
                *lanes_and_ranks(ledger, rows),
                *samples(ledger.data, counts, end),
                *disagreements(lines, odd),
                *self.evaluations.findings,
            ],
            digest=next((ledger.text_of(row.last) for row in reversed(rows) if row.last is not None), ""),
            stall=self.stalls.share,
            stalls=self.stalls.shares,
            single=self.copies.seconds,
            slices=(self.copies.most, self.copies.of),
            evaluations=self.evaluations.count,
        )


def check(events: Iterable[Event], also: Callable[[Event], object] = lambda _: None) -> Account:
    """Audit the ledger of a run; raises only if there is none, or if its workers had different data.

    If a run has several jobs, give the events of one of them (`jobs`).
    `also` is called with each event, for callers that want to read a long run only once.
    """
    events = events if isinstance(events, Collection | Events | JobEvents) else list(events)
    audit = Audit()
    for event in events:
        audit.add(event)
        also(event)
    return audit.account(events)


def compare(a: Iterable[Event], b: Iterable[Event]) -> int | None:
    """The first step after which two runs differ in their state, or that only one of them did; None if there is none.

    None proves that both runs trained to the same bits, whatever failed in them.
    """
    ours, theirs = (_resolved(events) for events in (a, b))
    edges = sorted({edge for span in chain(ours, theirs) for edge in (span.begin, span.end)})
    sides = [iter(ours), iter(theirs)]
    now = [next(side, None) for side in sides]
    for begin, end in pairwise(edges):
        for at, span in enumerate(now):
            if span is not None and span.end <= begin:
                now[at] = next(sides[at], None)
        there = [span for span in now if span is not None and span.begin <= begin]
        if len(there) == 1:
            return begin
        if there:
            codes = [span.codes[begin - span.begin : end - span.begin] for span in there]
            differ = (begin + np.flatnonzero(codes[0] != codes[1])[:1]).tolist()
            wrong = differ + [step for span in there for step in span.odd if begin <= step < end]
            if wrong:
                return int(min(wrong))
    return None


def _resolved(events: Iterable[Event]) -> list[Span]:
    """The steps of a run that count; those with void lines have the digest of the others."""
    ledger = read_ledger(events)
    spans = ledger.counting()
    lines = ledger.resolve(events, [(span.attempt, step) for span in spans for step in span.odd])
    for span in spans:
        for step in span.odd:
            digests = {digest_of(line) for line in lines[span.attempt, step]}
            if len(digests) == 1:
                span.piece.view(0, step, step + 1)[:] = ledger.code_of(digests.pop())
                span.piece.view(1, step, step + 1)[:] = 0
    return spans


def _steps(span: Span) -> Iterator[tuple[int, int]]:
    return ((span.attempt, step) for step in range(span.begin, span.end))


def _rows(ledger: Ledger, spans: Iterable[Span], most: dict[tuple[int, int], Line]) -> Iterator[Row]:
    """All steps that count; each odd one for itself, as most workers wrote it."""
    for span in spans:
        begin = span.begin
        for step in (step for step in span.odd if (span.attempt, step) in most):
            if begin < step:
                yield _row(span, begin, step)
            line = most[span.attempt, step]
            last = None if isinstance(line, Skipped) else ledger.code_of(digest_of(line))
            yield Row(span.attempt, step, step + 1, sums_of(line), int(last is None), last)
            begin = step + 1
        if begin < span.end:
            yield _row(span, begin, span.end)


def _row(span: Span, begin: int, end: int) -> Row:
    codes = span.codes[begin - span.begin : end - span.begin]
    done = np.flatnonzero(codes != SKIPPED)
    last = int(codes[done[-1]]) if len(done) else None
    return Row(span.attempt, begin, end, span.sums, len(codes) - len(done), last)


def _most(lines: list[Line]) -> Line:
    """The line that most workers wrote; the audit continues with it, and reports the others as findings."""
    votes = Counter(content for _, content in {(line.rank, content_of(line)) for line in lines})
    return max(lines, key=lambda line: votes[content_of(line)])
