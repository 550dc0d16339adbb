"""Curves over steps, thinned to what a picture can show, without losing a single spike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshmend.report.ledger import Span
from meshmend.report.timeline import Timeline

Floats = npt.NDArray[np.float64]
Curve = tuple[Floats, Floats]
"""Steps, and a value for each of them."""


def of_metric(spans: Sequence[Span]) -> Curve:
    """The metric that the ledger keeps, where a step has one."""
    steps = np.concatenate([np.empty(0), *(np.arange(span.begin, span.end) for span in spans)])
    values = np.concatenate([np.empty(0), *(span.values for span in spans)])
    there = ~np.isnan(values)
    return steps[there], values[there]


def of_step_time(timeline: Timeline, spans: Sequence[Span]) -> Curve:
    """The seconds between the commit of each step and of the one before it, in the same attempt."""
    steps, seconds = [np.empty(0)], [np.empty(0)]
    for attempt in sorted({span.attempt for span in spans}):
        own, times = timeline.commits(attempt)
        follows = np.flatnonzero(np.diff(own) == 1) + 1
        followers, between = own[follows], np.maximum(0.0, times[follows] - times[follows - 1])
        for span in (span for span in spans if span.attempt == attempt):
            low, high = np.searchsorted(followers, [span.begin, span.end])
            steps.append(followers[low:high].astype(np.float64))
            seconds.append(between[low:high])
    return np.concatenate(steps), np.concatenate(seconds)


def thin(curve: Curve, points: int) -> Curve:
    """Of very many points, the lowest and the highest of each of so many pieces."""
    steps, values = curve
    if len(steps) <= 2 * points:
        return curve
    cuts = np.linspace(0, len(steps), points, endpoint=False).astype(int)
    ends = [*cuts[1:], len(steps)]
    low = [begin + int(np.argmin(values[begin:end])) for begin, end in zip(cuts, ends, strict=True)]
    high = [begin + int(np.argmax(values[begin:end])) for begin, end in zip(cuts, ends, strict=True)]
    kept = np.unique([0, *low, *high, len(steps) - 1])
    return steps[kept], values[kept]
