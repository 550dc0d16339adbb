"""The times of commits: the usual pace before an incident is found among the last steps, not among all of a run."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshmend.report.columns import Pieces
from meshmend.report.timeline import USUAL, Timeline
from meshmend.telemetry import Committed, Epoch


def line(epoch: Epoch, step: int, time: float) -> Committed:
    return Committed(time=time, epoch=epoch, rank=0, step=step, by=[[0, 1]], digest="0" * 12)


@st.composite
def timelines(draw: st.DrawFn) -> list[Committed]:
    """Epochs one after another, each of which may repeat some of the last steps, and attempts that begin again."""
    found, step, now = [], 0, 1000.0
    for attempt in range(draw(st.integers(1, 2))):
        step = draw(st.integers(0, step))
        for world in range(1, draw(st.integers(2, 8))):
            step = max(0, step - draw(st.integers(0, 3)))
            for _ in range(draw(st.integers(1, 30))):
                now += draw(st.sampled_from([0.1, 0.2, 1.0]))
                found.append(line(Epoch(attempt, world), step, now))
                step += 1
    return found


def usual(lines: list[Committed], attempt: int, before: int) -> float | None:
    """The same from all lines of the run."""
    times: list[float] = []
    for own in range(attempt, -1, -1):
        first: dict[int, float] = {}
        for one in lines:
            if one.epoch.attempt == own and (own < attempt or one.step < before):
                first[one.step] = min(one.time, first.get(one.step, one.time))
        times += [first[step] for step in sorted(first, reverse=True)]
        if len(times) > USUAL:
            break
    times = times[USUAL::-1]
    return statistics.median(b - a for a, b in pairwise(times)) if len(times) > 1 else None


@given(timelines(), st.integers(0, 1), st.integers(0, 250), st.randoms())
def test_the_usual_pace_is_that_of_the_last_steps(
    lines: list[Committed], attempt: int, before: int, random: Random
) -> None:
    timeline = Timeline()
    attempt = min(attempt, lines[-1].epoch.attempt)
    shuffled = sorted(lines, key=lambda one: (random.random() < 0.5, one.epoch, one.step))
    for one in shuffled:
        timeline.add(one)
    assert timeline.pace().before(attempt, before) == usual(lines, attempt, before)


def test_the_pace_of_a_long_run_is_found_without_reading_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every incident asks for it, in every look at a live page."""
    timeline = Timeline()
    for step in range(5000):
        timeline.add(line(Epoch(0, 1 + step // 50), step, 0.1 * step))
    looked = 0
    last = Pieces.last

    def counted(self: Pieces, count: int, before: int | None = None) -> Iterator[tuple[int, float]]:
        nonlocal looked
        for found in last(self, count, before):
            looked += 1
            yield found

    monkeypatch.setattr(Pieces, "last", counted)
    assert timeline.pace().before(0, 4990) == pytest.approx(0.1)
    assert timeline.pace().before(0, 2503) == pytest.approx(0.1)
    assert looked < 5 * USUAL
