"""Charts of the three tables, in the look of `meshmend.base.theme`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from meshmend.base.theme import FAINT, INK, MUTED, PAPER, SERIES, bare, picture
from meshmend.simulator.step.step import Step

Path = str | os.PathLike[str]
PARTS = {
    "compute": "compute", "fixed": "fixed", "inside": "inside a replica", "exposed": "sum", "update": "update",
    "input": "input",
}  # fmt: skip
"""Parts of a step and what the key calls them."""

SHOWN = 0.001
"""The part of a step from which on it has a place in the key."""


class Loss(NamedTuple):
    """A bar of what a hole costs."""

    loss: float
    gone: float
    """The part of the chips that is dead."""
    total: float
    """Seconds of the step with the hole."""


def draw_holes(path: Path, groups: Sequence[str], series: Mapping[str, Sequence[Loss]]) -> None:
    """Bars of lost throughput with their steps written in them; a line shows the part of the chips that is gone."""
    with picture(path, 9.6, 4.0) as figure:
        axes = figure.subplots()
        wide = 0.8 / len(series)
        most = max(bar.loss for bars in series.values() for bar in bars)
        for index, (name, bars) in enumerate(series.items()):
            places = [group + (index - (len(series) - 1) / 2) * wide for group in range(len(groups))]
            axes.bar(places, [100 * bar.loss for bar in bars], 0.9 * wide, color=SERIES[index], label=name)
            for place, bar in zip(places, bars, strict=True):
                axes.annotate(
                    f"{100 * bar.loss:.2f} %\n{1e3 * bar.total:.3g} ms", (place, 0), (0, 5),
                    textcoords="offset points", ha="center", color=PAPER, fontsize=7.5,
                )  # fmt: skip
        for group, bar in enumerate(next(iter(series.values()))):
            axes.plot(
                [group - 0.43, group + 0.43], [100 * bar.gone] * 2, color=INK, linewidth=1.2, linestyle=(0, (4, 2))
            )
        axes.plot([], [], color=INK, linewidth=1.2, linestyle=(0, (4, 2)), label="the chips that are gone")
        axes.set_xticks(range(len(groups)), groups)
        axes.set_ylim(0, 100 * most * 1.15)
        axes.set_ylabel("throughput lost, %", color=MUTED)
        _finish(figure, [axes], "What a dead host costs: throughput lost, and the step with the hole", 5)


class Panel(NamedTuple):
    """Steps of one model over chips, in seconds."""

    plain: Sequence[tuple[int, float]]
    predicted: Sequence[tuple[int, float]]
    calibrating: Sequence[tuple[int, float]]
    tested: Sequence[tuple[int, float]]


def draw_multipod(path: Path, panels: Mapping[str, Panel]) -> None:
    """Predicted steps as lines over chips and published ones as points, both logarithmic."""
    high = (len(panels) + 2) // 3
    with picture(path, 3.5 * min(3, len(panels)), 2.9 * high + 0.7) as figure:
        grid = figure.subplots(high, min(3, len(panels)), squeeze=False)
        for axes, (title, panel) in zip(grid.flat, panels.items(), strict=False):
            _curves(axes, panel)
            axes.set_title(title, color=INK, fontsize=10, loc="left")
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        for axes in grid[:, 0]:
            axes.set_ylabel("step, ms", color=MUTED)
        for axes in grid.flat[max(0, len(panels) - 3) :]:
            axes.set_xlabel("chips", color=MUTED)
        _finish(figure, list(grid.flat), "Steps over chips, predicted and published", 4)


def _curves(axes: Any, panel: Panel) -> None:
    def milliseconds(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
        return [chips for chips, _ in points], [1e3 * seconds for _, seconds in points]

    axes.plot(*milliseconds(panel.plain), color=FAINT, linewidth=2, label="predicted with a ring and whole updates")
    axes.plot(*milliseconds(panel.predicted), color=SERIES[0], linewidth=1.6, label="predicted as it was run")
    axes.plot(
        *milliseconds(panel.calibrating), color=INK, marker="o", markersize=6, markerfacecolor=PAPER, linestyle="none",
        label="published, used to calibrate",
    )  # fmt: skip
    axes.plot(
        *milliseconds(panel.tested), color=SERIES[1], marker="o", markersize=6, linestyle="none",
        label="published, not used",
    )  # fmt: skip
    chips = sorted({count for points in panel for count, _ in points})
    shown = [seconds for points in panel for _, seconds in points]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(chips, [f"{count}" for count in chips], fontsize=7)
    marks = [
        mark for mark in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if min(shown) * 700 <= mark <= max(shown) * 1400
    ]
    axes.set_yticks(marks, [f"{mark}" for mark in marks])
    axes.minorticks_off()


def draw_faults(path: Path, panels: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]]) -> None:
    """Cost in steps over workers, both logarithmic."""
    with picture(path, 4.6 * len(panels), 4.0) as figure:
        grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, (title, lines) in zip(grid, panels.items(), strict=True):
            for index, (name, points) in enumerate(lines.items()):
                axes.plot(*zip(*points, strict=True), color=SERIES[index], marker="o", markersize=4, label=name)
            workers = sorted({count for points in lines.values() for count, _ in points})
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(workers, [f"{count}" for count in workers])
            axes.minorticks_off()
            axes.set_xlabel("workers", color=MUTED)
            axes.set_title(title, color=INK, fontsize=10, loc="left")
        low, high = grid[0].get_ylim()
        marks = [mark for mark in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200) if low <= mark <= high]
        grid[0].set_yticks(marks, [f"{mark:g}" for mark in marks])
        grid[0].set_ylabel("steps", color=MUTED)
        _finish(figure, list(grid), "What one failure costs, in steps", 4)


def draw_step(path: Path, title: str, step: Step) -> None:
    """One bar, part by part."""
    with picture(path, 8.0, 1.7) as figure:
        axes = figure.subplots()
        left = 0.0
        for index, (part, label) in enumerate(PARTS.items()):
            wide = 1e3 * getattr(step, part)
            if wide > SHOWN * 1e3 * step.total:
                axes.barh([0], [wide], 0.5, left, color=SERIES[index], label=f"{label} {wide:.3g} ms", edgecolor=PAPER)
            left += wide
        axes.set_yticks([])
        axes.set_xlabel("ms", color=MUTED)
        _finish(figure, [axes], title, len(PARTS), 0.66)


def _finish(figure: Any, panels: Sequence[Any], title: str, columns: int, top: float | None = None) -> None:
    """One title and one key above all panels."""
    high = figure.get_size_inches()[1]
    for axes in panels:
        bare(axes)
        axes.grid(axis="y", color=FAINT, linewidth=0.7)
        axes.set_axisbelow(True)
    figure.tight_layout(rect=(0, 0, 1, top or 1 - 0.62 / high))
    figure.text(0.012, 1 - 0.2 / high, title, color=INK, fontsize=10.5, va="center")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="upper left", bbox_to_anchor=(0.005, 1 - 0.32 / high), ncols=columns, frameon=False,
        fontsize=8, labelcolor=MUTED, handlelength=1.4, columnspacing=1.4,
    )  # fmt: skip
