"""The audit: proof, from events alone, that each lane of each step and each sample of each epoch was counted once.

The couriers check this in every round while the job runs. The audit does not trust them: it takes what the workers
wrote down, works out again which samples every lane holds (`Lanes`), and adds up. A **finding** is one sentence that
says what is wrong; a run without findings is clean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from meshmend.base.units import plural
from meshmend.errors import FormatError
from meshmend.job.data.lanes import Ids, Lanes
from meshmend.report.ledger import Ledger, Line, digest_of, read_ledger
from meshmend.telemetry import Event, Skipped

Counts = npt.NDArray[np.int64]
RANKS = 1 << 32
"""More than there can be, so that attempt and rank make one number."""


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
    """Lanes that were counted, over all steps."""
    repeated: int
    """Steps that were rolled back and done again because the run was resumed from a checkpoint before them."""
    skipped: int
    """Steps whose sum was not finite and was left out, as the user asked; their samples count as seen once."""
    workers: int
    """Ranks that took part."""
    findings: list[str]
    digest: str
    """The digest of the state after the last step."""

    @property
    def clean(self) -> bool:
        """Whether there are no findings."""
        return not self.findings


def check(events: Iterable[Event]) -> Account:
    """Audit the ledger of a run; raises only if there is none, or if its workers had different data."""
    ledger = read_ledger(events)
    split = [step for step in sorted(ledger.lines) if _differ(ledger.lines[step])]
    lines = {step: ledger.lines[step][0] for step in sorted(ledger.lines)} | {s: _most(ledger.lines[s]) for s in split}
    counts, wrong_lanes = _count_lanes(ledger, lines)
    skipped = sum(isinstance(line, Skipped) for line in lines.values())
    lane_size = ledger.data.lane_size
    return Account(
        steps=len(lines),
        size=ledger.data.size,
        batch=ledger.data.batch,
        epochs=ledger.end * ledger.data.batch / ledger.data.size,
        samples=int(counts.sum()) * lane_size - skipped * ledger.data.batch,
        lanes=int(counts.sum()),
        repeated=len(ledger.void),
        skipped=skipped,
        workers=len({rank for _, rank in ledger.opened}),
        findings=[
            *_missing(ledger),
            *_stray(ledger),
            *wrong_lanes,
            *_samples(ledger, counts),
            *_disagreements(ledger, split),
        ],
        digest=next((digest_of(line) for line in reversed(lines.values()) if not isinstance(line, Skipped)), ""),
    )


def compare(a: Iterable[Event], b: Iterable[Event]) -> int | None:
    """The first step after which two runs differ in their state, or that only one of them did; None if there is none.

    None proves that both runs trained to the same bits, whatever failed in them.
    """
    ours, theirs = read_ledger(a).lines, read_ledger(b).lines
    for step in sorted(ours.keys() | theirs.keys()):
        digests = [{digest_of(line) for line in lines.get(step, [])} for lines in (ours, theirs)]
        if digests[0] != digests[1] or len(digests[0]) != 1:
            return step
    return None


def _differ(lines: list[Line]) -> bool:
    first = lines[0]
    return any(line.by != first.by or digest_of(line) != digest_of(first) for line in lines)


def _most(lines: list[Line]) -> Line:
    """The line that most workers wrote; the audit continues with it, and reports the others as findings."""
    votes = Counter(content for _, content in {(line.rank, _content(line)) for line in lines})
    return max(lines, key=lambda line: votes[_content(line)])


def _content(line: Line) -> tuple[str, str]:
    """What a line says, in words: who computed which lanes, and the state after the step."""
    return f"({_who(line.by)})", "that it was skipped" if isinstance(line, Skipped) else f"digest {line.digest}"


def _missing(ledger: Ledger) -> Iterator[str]:
    there = np.array(sorted(ledger.lines), np.int64)
    edges = np.concatenate([[-1], there, [ledger.end]])
    for gap in np.flatnonzero(np.diff(edges) > 1):
        yield f"{_range('step', edges[gap] + 1, edges[gap + 1] - 1)} missing in the ledger"


def _stray(ledger: Ledger) -> Iterator[str]:
    ranks: dict[tuple[int, int], set[int]] = {}
    for line in ledger.stray:
        ranks.setdefault((line.epoch.attempt, line.step), set()).add(line.rank)
    for (attempt, step), some in sorted(ranks.items()):
        start = ledger.starts.get(attempt)
        why = "in which no worker had opened a job" if start is None else f"which began only at step {start}"
        yield f"step {step}: {_workers(some)} wrote a line of attempt {attempt}, {why}"


def _disagreements(ledger: Ledger, split: list[int]) -> Iterator[str]:
    for step in split:
        wrote: dict[int, set[tuple[str, str]]] = {}
        for line in ledger.lines[step]:
            wrote.setdefault(line.rank, set()).add(_content(line))
        for rank in sorted(rank for rank, contents in wrote.items() if len(contents) > 1):
            parts = [sorted({*part}) for part in zip(*wrote.pop(rank), strict=True)]
            kinds = "; ".join(" and ".join(part) for part in parts if len(part) > 1)
            attempt = line.epoch.attempt
            yield f"step {step}: worker {rank} wrote it more than once in attempt {attempt}, differently: {kinds}"
        for part, what in enumerate(("lines disagree in who computed which lanes", "states differ after it")):
            camps: dict[str, list[int]] = {}
            for rank, (content,) in sorted(wrote.items()):
                camps.setdefault(content[part], []).append(rank)
            if len(camps) > 1:
                yield f"step {step}: the workers' {what}: {_camps(camps, len(wrote))}"


def _camps(camps: dict[str, list[int]], workers: int) -> str:
    """Who wrote what; the minorities first, and by rank."""
    ordered = sorted(camps.items(), key=lambda camp: len(camp[1]))
    whose = (("most" if 2 * len(ranks) > workers else _workers(ranks), content) for content, ranks in ordered)
    return ", ".join(f"{who} wrote {content}" for who, content in whose)


def _count_lanes(ledger: Ledger, lines: dict[int, Line]) -> tuple[Counts, list[str]]:
    """How often each lane of the endless sequence of lanes was counted, and findings about lanes and ranks.

    If a step has too many lanes, the surplus is taken to be the lanes that come next in the sequence: those are what a
    worker would have computed.
    """
    lanes, end = ledger.data.lanes, ledger.end
    for step, line in lines.items():
        if any(len(run) != 2 or run[1] < 0 for run in line.by):
            raise FormatError(f"step {step}: by={line.by} is no list of [rank, how many lanes]")
    steps = np.fromiter(lines, np.int64, len(lines))
    sizes = np.fromiter((len(line.by) for line in lines.values()), np.int64, len(lines))
    flat = chain.from_iterable(chain.from_iterable(line.by for line in lines.values()))
    ranks, runs = np.fromiter(flat, np.int64, 2 * int(sizes.sum())).reshape(-1, 2).T
    row = np.repeat(np.arange(len(lines)), sizes)
    sums = np.bincount(row, runs, minlength=len(lines)).astype(np.int64)
    findings = []
    for at in np.flatnonzero(sums != lanes):
        step, total = int(steps[at]), int(sums[at])
        who = _who(lines[step].by)
        if total < lanes:
            findings.append(f"step {step}: {_range('lane', total, lanes - 1, past=True)} counted by nobody ({who})")
        else:
            findings.append(f"step {step}: {total} lanes were counted where there are {lanes}, so some twice ({who})")
    attempts = np.fromiter((line.epoch.attempt for line in lines.values()), np.int64, len(lines))[row]
    _, sample, which = np.unique(attempts * RANKS + ranks, return_index=True, return_inverse=True)
    opened = np.array([ledger.opened.get((int(attempts[at]), int(ranks[at])), end) for at in sample], np.int64)
    for at in np.flatnonzero(steps[row] < opened[which]):
        attempt, rank, step = int(attempts[at]), int(ranks[at]), int(steps[row[at]])
        since = ledger.opened.get((attempt, rank))
        why = "which never took part" if since is None else f"which took part only from step {since} on"
        findings.append(f"step {step}: {plural(int(runs[at]), 'lane')} counted for worker {rank}, {why}")
    change = np.zeros(end * lanes + 1, np.int64)
    np.add.at(change, steps * lanes, 1)
    np.add.at(change, np.minimum(steps * lanes + sums, end * lanes), -1)
    return np.cumsum(change)[:-1], findings


def _samples(ledger: Ledger, counts: Counts) -> Iterator[str]:
    """Findings about the samples of each epoch; samples of an unfinished epoch that are still to come do not count."""
    size, end = ledger.data.size, ledger.end * ledger.data.batch
    for epoch in range(-(-end // size)):
        low, high = epoch * size, min((epoch + 1) * size, end)
        own = counts[low // ledger.data.lane_size : -(-high // ledger.data.lane_size)]
        times = None if (own == 1).all() else counts[np.arange(low, high) // ledger.data.lane_size]
        seen = np.bincount(epoch_ids(ledger.data, epoch)[: high - low], times, minlength=size)
        if (seen > 1).any():
            yield f"epoch {epoch}: {_some(seen > 1)} counted more than once"
        if (seen < 1).any() and high == low + size:
            yield f"epoch {epoch}: {_some(seen < 1)} never counted"


def epoch_ids(data: Lanes, epoch: int) -> Ids:
    """The samples of an epoch in the order in which steps take them: a whole epoch is one big lane."""
    return Lanes(data.size, data.size, 1, data.seed).ids(epoch, 0)


def _who(by: list[list[int]]) -> str:
    return ", ".join(f"worker {rank}: {plural(count, 'lane')}" for rank, count in by)


def _some(bad: npt.NDArray[np.bool_]) -> str:
    first, *others = np.flatnonzero(bad)
    return f"sample {first} and {plural(len(others), 'other')} were" if others else f"sample {first} was"


def _range(noun: str, low: int, high: int, *, past: bool = False) -> str:
    if low == high:
        return f"{noun} {low} {'was' if past else 'is'}"
    return f"{noun}s {low} to {high} {'were' if past else 'are'}"


def _workers(ranks: Iterable[int]) -> str:
    first, *others = sorted(ranks)
    return f"workers {', '.join(map(str, [first, *others]))}" if others else f"worker {first}"
