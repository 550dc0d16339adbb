"""A picture of a run: the loss over its steps, what failed when, and how many workers there were.

What was rolled back stands behind it, faintly: it was seen while the job ran.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from meshmend.base.theme import FAINT, INK, MUTED, SERIES, bare, picture
from meshmend.base.units import plural
from meshmend.errors import JobError
from meshmend.report.curves import Curve, Floats, of_metric, thin
from meshmend.report.fold import Level
from meshmend.report.incidents import Incident, incidents
from meshmend.report.labels import labels
from meshmend.report.ledger import Span, read_ledger
from meshmend.telemetry import Event, Events

VOID = "#b9c2d0"
"""The colour of what was rolled back."""
LEVELS = {
    Level.SHRINK: ("#389c8a", "shrink"),
    Level.NEW_WORLD: ("#e8590c", "new world"),
    Level.CHECKPOINT: ("#c2188b", "checkpoint"),
}
"""The colour and the name of each level of recovery."""
WIDE, HIGH, STAIR = 10.0, 4.6, 0.17
"""Inches: the picture without its head, and one stair of labels in its head."""
LEFT, RIGHT = 0.07, 0.98
"""Margins, as shares of the width."""
SPAN = 200.0
"""How many times the lowest value the highest may be before the scale is logarithmic."""
POINTS = 4000
"""The number of pieces of a curve that can be distinguished."""


def draw_loss(events: Iterable[Event], path: str | os.PathLike[str], metric: str = "loss") -> None:
    """Write the picture as PNG or SVG, as the path says; `metric` is one that the job's script commits."""
    events = events if isinstance(events, Collection | Events) else list(events)
    ledger = read_ledger(events, metric)
    spans = ledger.counting()
    steps, values = _curve(spans)
    if not len(steps):
        names = sorted(ledger.metrics)
        there = f"its metrics are {', '.join(names)}" if names else "it has no metrics: give some to job.commit"
        raise JobError(f"no step of this run has a metric {metric!r}: {there}")
    failures = incidents(events)
    with picture(path, WIDE, HIGH) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[5, 1])
        void = ledger.void()
        for attempt in ledger.starts:
            _draw_void(above, below, [span for span in void if span.attempt == attempt])
        _draw_curve(above, steps, values, metric)
        _draw_workers(below, spans)
        ends = [ledger.end - 1, *(span.end - 1 for span in void), *(incident.step for incident in failures)]
        above.set_xlim(0, max(1, *ends))
        _mark(figure, above, below, failures)


def _curve(spans: Sequence[Span]) -> Curve:
    return thin(of_metric(spans), POINTS)


def _draw_curve(axes: Any, steps: Floats, values: Floats, metric: str) -> None:
    axes.plot(steps, values, color=SERIES[0], linewidth=1.3, marker="." if len(steps) == 1 else "", zorder=3)
    low, high = float(values.min()), float(values.max())
    logarithmic = low > 0 and high > SPAN * low
    axes.set_ylabel(f"{metric} (log)" if logarithmic else metric, color=MUTED)
    axes.set_yscale("log" if logarithmic else "linear")
    axes.minorticks_off()
    _bare(axes)
    axes.grid(axis="y", color=FAINT, linewidth=0.7)


def _draw_void(above: Any, below: Any, spans: Sequence[Span]) -> None:
    """What was rolled back of one attempt."""
    steps, values = _curve(spans)
    if len(steps):
        above.plot(steps, values, color=VOID, linewidth=1, zorder=2)
    if spans:
        _draw_active(below, spans, VOID)


def _draw_workers(axes: Any, spans: Sequence[Span]) -> None:
    active = _draw_active(axes, spans, INK)
    most = round(axes.dataLim.y1)  # including what was rolled back
    axes.set_ylim(0, most * 1.25)
    axes.set_yticks(sorted({0, min(active), most}) if most - min(active) > most / 5 else [0, most])
    axes.set_ylabel("workers", color=MUTED)
    axes.set_xlabel("step", color=MUTED)
    _bare(axes)


def _draw_active(axes: Any, spans: Sequence[Span], colour: str) -> list[int]:
    """How many workers computed each step."""
    active = [len({rank for rank, _ in span.by}) for span in spans]
    steps = [*(span.begin for span in spans), spans[-1].end]
    axes.step(steps, [*active, active[-1]], where="post", color=colour, linewidth=1)
    return active


def _bare(axes: Any) -> None:
    bare(axes)
    axes.xaxis.get_major_locator().set_params(integer=True)


def _mark(figure: Any, above: Any, below: Any, failures: Sequence[Incident]) -> None:
    """A line for each incident, with its label over it, and a key of the levels that occur."""
    low, high = above.get_xlim()
    wide, found = labels(
        failures, lambda step: (step - low) / (high - low), lambda text: _width(figure, text), RIGHT - LEFT
    )
    shared = len(found) < len(failures)
    style = {"linewidth": 0.5, "alpha": 0.5} if shared else {"linewidth": 0.8, "alpha": 0.8}
    head = 0.5 + STAIR * (max((label.stair for label in found), default=-1) + 1)
    tall = HIGH + head
    figure.set_size_inches(WIDE, tall)
    figure.subplots_adjust(left=LEFT, right=LEFT + wide, bottom=0.5 / tall, top=1 - head / tall, hspace=0.12)
    inches = above.get_position().height * tall
    for label in found:
        reach = 1 + STAIR * (label.stair + 0.75) / inches
        for at, incident in enumerate(label.incidents):
            colour = LEVELS[incident.level][0]
            below.axvline(incident.step, color=colour, zorder=2, **style)
            above.axvline(incident.step, ymax=1 if at else reach, color=colour, zorder=2, clip_on=bool(at), **style)
        levels = {incident.level for incident in label.incidents}
        above.annotate(
            label.text, (label.incidents[0].step, reach), xycoords=above.get_xaxis_transform(), xytext=(3, 0),
            textcoords="offset points", va="center", ha="left", fontsize=8, annotation_clip=False,
            color=LEVELS[levels.pop()][0] if len(levels) == 1 else MUTED,
        )  # fmt: skip
    _key(figure, failures, tall)


def _key(figure: Any, failures: Sequence[Incident], high: float) -> None:
    levels = [level for level in LEVELS if any(incident.level is level for incident in failures)]
    figure.text(LEFT, 1 - 0.22 / high, _title(failures), color=INK, fontsize=10, va="center")
    right = RIGHT
    for level in reversed(levels):
        text = figure.text(
            right, 1 - 0.22 / high, f"━ {LEVELS[level][1]}", color=LEVELS[level][0], ha="right", va="center", fontsize=8
        )
        right -= text.get_window_extent().width / (WIDE * figure.dpi) + 0.02


def _title(failures: Sequence[Incident]) -> str:
    return plural(len(failures), "incident") if failures else "no failures"


def _width(figure: Any, label: str) -> float:
    text = figure.text(0, 0, label, fontsize=8)
    width: float = text.get_window_extent().width / (WIDE * figure.dpi)
    text.remove()
    return width
