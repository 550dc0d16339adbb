"""What an audit can find, as sentences. If there are very many of a kind, the first `MOST` stand for all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from meshmend.base.units import plural, workers
from meshmend.job.data.lanes import Ids, Lanes
from meshmend.report.ledger import Ledger, Line, sums_of
from meshmend.telemetry import Skipped

MOST = 10_000
"""Findings of a kind."""
EPOCHS = 1000
"""Epochs about which there are findings."""
NAMED = 1 << 26
"""In larger sets of data, samples are counted and not named: to know the names, an epoch must be shuffled in memory."""


@dataclass(frozen=True)
class Row:
    """Steps that follow one another, computed by the same workers, as most workers wrote them."""

    attempt: int
    begin: int
    end: int
    sums: list[list[list[int]]]
    """Which rank computed how many lanes, in each sum of a step."""
    skipped: int
    """How many of them were skipped."""
    last: int | None
    """The digest after the last that was not, as a number."""

    @property
    def lanes(self) -> int:
        """The lanes that were counted in each step's first sum: those that tell which samples were seen."""
        return _lanes(self.sums[0])

    @property
    def all_lanes(self) -> int:
        """The lanes that were counted in each step, in all its sums."""
        return sum(map(_lanes, self.sums))


@dataclass(frozen=True)
class Counts:
    """How often each lane of the endless sequence of lanes was counted: once, but for some."""

    total: int
    changes: list[tuple[int, int, int]]
    """From and until which lane, and by how much, it was not once."""

    @classmethod
    def of(cls, rows: Sequence[Row], data: Lanes, end: int) -> Counts:
        """Add up the rows.

        If a step has too many lanes, the surplus is taken to be the lanes that come next in the sequence: those are
        what a worker would have computed.
        """
        lanes, changes, step = data.lanes, list[tuple[int, int, int]](), 0
        for row in rows:
            if step < row.begin:
                changes.append((step * lanes, row.begin * lanes, -1))
            step = row.end
            if row.lanes != lanes:
                own = (at * lanes for at in range(row.begin, row.end))
                pairs = ((at + row.lanes, at + lanes) for at in own)
                changes += [(min(p), min(max(p), end * lanes), 1 if p[0] > p[1] else -1) for p in islice(pairs, MOST)]
        if step < end:
            changes.append((step * lanes, end * lanes, -1))
        return cls(sum((row.end - row.begin) * row.lanes for row in rows), sorted(changes))

    def epochs(self, data: Lanes) -> Iterator[int]:
        """The epochs in which some lanes were not counted once."""
        done = -1
        for begin, end, _ in self.changes:
            last = (end * data.lane_size - 1) // data.size
            yield from range(max(done + 1, begin * data.lane_size // data.size), last + 1)
            done = max(done, last)

    def within(self, data: Lanes, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """Return how often these samples of the sequence were counted, if not once: (from, until, times)."""
        size = data.lane_size
        own = [
            (max(begin * size, low), min(end * size, high), more)
            for begin, end, more in self.changes
            if begin * size < high and end * size > low
        ]
        for first, after in pairwise(sorted({edge for change in own for edge in change[:2]})):
            times = 1 + sum(more for begin, end, more in own if begin <= first and end >= after)
            if times != 1:
                yield first - low, after - low, times


def missing(rows: Iterable[Row], end: int) -> Iterator[str]:
    """Return findings about steps that no worker recorded."""
    step = 0
    for begin, after in [*((row.begin, row.end) for row in rows), (end, end)]:
        if step < begin:
            yield f"{_range('step', step, begin - 1)} missing in the ledger"
        step = after


def stray_lines(
    ledger: Ledger, lines: dict[tuple[int, int], list[Line]], steps: Iterable[tuple[int, int]]
) -> Iterator[str]:
    """Lines that belong to no attempt."""
    for attempt, step in sorted(steps):
        start = ledger.starts.get(attempt)
        why = "in which no worker had opened a job" if start is None else f"which began only at step {start}"
        ranks = {line.rank for line in lines[attempt, step]}
        yield f"step {step}: {workers(sorted(ranks))} wrote a line of attempt {attempt}, {why}"


def lanes_and_ranks(ledger: Ledger, rows: Sequence[Row]) -> Iterator[str]:
    """Return findings about lanes that no worker or two workers counted, and workers that cannot have counted any."""
    lanes = ledger.data.lanes
    wrong = (
        (step, turn, by)
        for row in rows
        for turn, by in enumerate(row.sums)
        if _lanes(by) != lanes
        for step in range(row.begin, row.end)
    )
    for step, turn, by in islice(wrong, MOST):
        total, who, where = _lanes(by), _who(by), f"step {step}" + (f", sum {turn + 1}" if turn else "")
        if total < lanes:
            yield f"{where}: {_range('lane', total, lanes - 1, past=True)} not counted by any worker ({who})"
        else:
            yield f"{where}: {total} lanes were counted where there are {lanes}, so some twice ({who})"
    yield from islice(_strangers(ledger, rows), MOST)


def _strangers(ledger: Ledger, rows: Iterable[Row]) -> Iterator[str]:
    for row in rows:
        every = [run for by in row.sums for run in by]
        since = [ledger.opened.get((row.attempt, rank)) for rank, _ in every]
        until = max((row.end if one is None else min(one, row.end) for one in since), default=row.begin)
        for step in range(row.begin, until):
            for (rank, count), first in zip(every, since, strict=True):
                if first is None or step < first:
                    why = "which never took part" if first is None else f"which took part only from step {first} on"
                    yield f"step {step}: {plural(count, 'lane')} counted for worker {rank}, {why}"


def samples(data: Lanes, counts: Counts, end: int) -> Iterator[str]:
    """Return findings about samples of an epoch that were not counted once; samples still to come are no finding.

    An epoch is a permutation of the samples, so an epoch whose lanes were all counted once needs no check.
    """
    for epoch in islice(counts.epochs(data), EPOCHS):
        low, high = epoch * data.size, min((epoch + 1) * data.size, end * data.batch)
        found = [*counts.within(data, low, high)]
        if twice := [(first, after) for first, after, times in found if times > 1]:
            yield f"epoch {epoch}: {_some(data, epoch, twice)} counted more than once"
        never = [(first, after) for first, after, times in found if times < 1]
        if never and high == low + data.size:
            yield f"epoch {epoch}: {_some(data, epoch, never)} never counted"


def epoch_ids(data: Lanes, epoch: int) -> Ids:
    """The samples of an epoch in the order in which steps take them."""
    return data.epoch(epoch)


def disagreements(lines: dict[tuple[int, int], list[Line]], odd: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Steps about which the workers wrote different things."""
    for attempt, step in odd[:MOST]:
        wrote: dict[int, set[tuple[str, str]]] = {}
        for line in lines[attempt, step]:
            wrote.setdefault(line.rank, set()).add(content_of(line))
        for rank in sorted(rank for rank, contents in wrote.items() if len(contents) > 1):
            parts = [sorted({*part}) for part in zip(*wrote.pop(rank), strict=True)]
            kinds = "; ".join(" and ".join(part) for part in parts if len(part) > 1)
            yield f"step {step}: worker {rank} wrote it more than once in attempt {attempt}, differently: {kinds}"
        for part, what in enumerate(("lines disagree in who computed which lanes", "states differ after it")):
            camps: dict[str, list[int]] = {}
            for rank, (content,) in sorted(wrote.items()):
                camps.setdefault(content[part], []).append(rank)
            if len(camps) > 1:
                yield f"step {step}: the workers' {what}: {_camps(camps, len(wrote))}"
    if len(odd) > MOST:
        yield f"the workers' lines or states differ in {plural(len(odd) - MOST, 'more step')}"


def content_of(line: Line) -> tuple[str, str]:
    """Put a line in words: which worker computed which lanes, and the state after the step."""
    who = "; ".join(map(_who, sums_of(line)))
    return f"({who})", "that it was skipped" if isinstance(line, Skipped) else f"digest {line.digest}"


def _camps(camps: dict[str, list[int]], wrote: int) -> str:
    """Say which workers wrote what; the minorities first, and by rank."""
    ordered = sorted(camps.items(), key=lambda camp: len(camp[1]))
    whose = (("most" if 2 * len(ranks) > wrote else workers(sorted(ranks)), content) for content, ranks in ordered)
    return ", ".join(f"{who} wrote {content}" for who, content in whose)


def _lanes(by: list[list[int]]) -> int:
    return sum(count for _, count in by)


def _who(by: list[list[int]]) -> str:
    return ", ".join(f"worker {rank}: {plural(count, 'lane')}" for rank, count in by)


def _some(data: Lanes, epoch: int, places: list[tuple[int, int]]) -> str:
    """Samples at these places of an epoch; the first by its name."""
    count = sum(after - first for first, after in places)
    if data.size > NAMED:
        return f"{plural(count, 'sample')} were"
    ids = None if count == data.size else epoch_ids(data, epoch)
    first = 0 if ids is None else min(int(ids[begin:after].min()) for begin, after in places)
    return f"sample {first} and {plural(count - 1, 'other')} were" if count > 1 else f"sample {first} was"


def _range(noun: str, low: int, high: int, *, past: bool = False) -> str:
    if low == high:
        return f"{noun} {low} {'was' if past else 'is'}"
    return f"{noun}s {low} to {high} {'were' if past else 'are'}"
