"""Where the time of a run went: the share in which it made progress that counts, and what took the rest.

    down        no launcher was running: between the end of one attempt and the beginning of the next
    repeated    steps were computed that a later attempt computed again
    start       from the beginning of an attempt to its first commit
    recovery    from a failure to the next commit, less one ordinary step: that would have been needed anyway

What belongs to several of these counts for the first of them. The clocks are those of the processes that wrote the
events.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from meshmend.report.incidents import Incident
from meshmend.report.ledger import Span
from meshmend.report.timeline import Timeline
from meshmend.telemetry import Began, Ended

REASONS = "down", "repeated", "start", "recovery"


@dataclass(frozen=True)
class LostTime:
    """An interval, in seconds since 1970, in which the run made no progress that counts."""

    begin: float
    end: float
    reason: str


@dataclass(frozen=True)
class Goodput:
    """The time of a run, divided."""

    begin: float
    end: float
    pieces: list[LostTime] = field(default_factory=list)
    """What was lost, in order and without overlap."""

    @property
    def wall(self) -> float:
        """Seconds in all."""
        return self.end - self.begin

    @property
    def seconds(self) -> dict[str, float]:
        """What was lost, by reason."""
        return {name: sum(one.end - one.begin for one in self.pieces if one.reason == name) for name in REASONS}

    @property
    def share(self) -> float:
        """Of the time, how much was progress."""
        return 1 - sum(self.seconds.values()) / self.wall if self.wall > 0 else 0.0

    def windows(self, count: int) -> list[float]:
        """The same for so many equal parts of the run, one after another."""
        wide = self.wall / count
        if wide <= 0:
            return []
        found = [0.0] * count
        for one in self.pieces:
            first = max(0, min(count - 1, int((one.begin - self.begin) / wide)))
            for place in range(first, count):
                low, high = self.begin + place * wide, self.begin + (place + 1) * wide
                if low >= one.end:
                    break
                found[place] += max(0.0, min(high, one.end) - max(low, one.begin))
        return [max(0.0, 1 - lost / wide) for lost in found]


def goodput(
    attempts: Sequence[tuple[Began, Ended | None]],
    timeline: Timeline,
    void: Iterable[Span],
    incidents: Iterable[Incident],
    last: float,
) -> Goodput:
    """Divide the time of a run, from its beginning to `last`."""
    if not attempts:
        return Goodput(last, last)
    found: list[LostTime] = []
    for (_, ended), (again, _) in pairwise(attempts):
        if ended is not None:
            found.append(LostTime(ended.time, again.time, "down"))
    for span in void:
        times = timeline.between(span.attempt, span.begin, span.end)
        if len(times):
            found.append(LostTime(float(times[0]), float(times[-1]), "repeated"))
    for began, ended in attempts:
        first = timeline.first(began.epoch.attempt)
        found.append(LostTime(began.time, first if first is not None else ended.time if ended else last, "start"))
    for one in incidents:
        end = last if one.end is None else one.end - (one.ordinary or 0.0)
        found.append(LostTime(one.begin, end, "recovery"))
    begin = attempts[0][0].time
    return Goodput(begin, max(begin, last), _apart(found, begin, max(begin, last)))


def _apart(found: Iterable[LostTime], low: float, high: float) -> list[LostTime]:
    """The same time without overlap: each moment belongs to the first of its reasons."""
    edges: list[tuple[float, int, int]] = []
    for one in found:
        begin, end = max(low, one.begin), min(high, one.end)
        if begin < end:
            place = REASONS.index(one.reason)
            edges += [(begin, 1, place), (end, -1, place)]
    open_, before, pieces = [0] * len(REASONS), low, list[LostTime]()
    for when, change, place in sorted(edges):
        reason = next((name for name, count in zip(REASONS, open_, strict=True) if count), None)
        if reason is not None and when > before:
            if pieces and pieces[-1].reason == reason and pieces[-1].end == before:
                pieces[-1] = LostTime(pieces[-1].begin, when, reason)
            else:
                pieces.append(LostTime(before, when, reason))
        open_[place] += change
        before = when
    return pieces
