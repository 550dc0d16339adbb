"""The chart of docs/results/peers.md: what a step takes, and from a kill to the next step.

python chart.py last.json peers.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import report
from run import loaded
from systems import ALL

from meshmend.base.theme import FAINT, INK, MUTED, SERIES, bare, picture

OURS, THEIRS = SERIES[1], SERIES[0]


def main(source: str, target: str) -> None:
    results = [loaded(one) for one in json.loads(Path(source).read_text())["results"]]
    with picture(target, 10, 6.4) as figure:
        axes = figure.subplots(2, 2)
        figure.subplots_adjust(left=0.19, right=0.97, top=0.93, bottom=0.05, hspace=0.32, wspace=0.5)
        for column, size in enumerate((25, 100)):
            rows = [(name, report.step(results, name, (size, 4))) for name in ALL]
            bars(axes[0][column], [(n, s) for n, s in rows if s], 1e3, f"a step of {size} MB, 4 workers, ms", 0)
            rows = [(name, report.next_step(results, name, size, "kill")) for name in ALL]
            title = f"kill → next step, {size} MB, seconds (log)"
            bars(axes[1][column], [(n, s) for n, s in rows if s], 1, title, 2, log=True)


def bars(axes: Any, rows: list[tuple[str, Any]], scale: float, title: str, digits: int, *, log: bool = False) -> None:
    """One bar a system, with a line from the least to the most."""
    bare(axes)
    places = range(len(rows))[::-1]
    for place, (name, found) in zip(places, rows, strict=True):
        colour = OURS if name.startswith("meshmend") else THEIRS
        axes.barh(place, scale * found.middle, 0.62, color=colour)
        axes.plot([scale * found.least, scale * found.most], [place, place], color=INK, linewidth=1.2)
        end = scale * found.most * (1.12 if log else 1) + (0 if log else 0.015 * scale * max(s.most for _, s in rows))
        axes.text(end, place, f"{scale * found.middle:.{digits}f}", va="center", color=INK)
    axes.set_yticks(list(places), [ALL[name].title for name, _ in rows])
    axes.tick_params(axis="y", labelcolor=INK)
    if log:
        axes.set_xscale("log")
        axes.set_xlim(0.05, 60)
        axes.set_xticks([0.1, 1, 10], ["0.1", "1", "10"])
        axes.minorticks_off()
    else:
        axes.set_xlim(0, 1.12 * scale * max((s.most for _, s in rows), default=1))
    axes.grid(axis="x", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_title(title, loc="left", color=MUTED, fontsize=9)


if __name__ == "__main__":
    main(*sys.argv[1:])
