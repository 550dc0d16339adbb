"""The study of cubes as a chart: goodput of each rule, a group of bars for each time to repair."""

from __future__ import annotations

import os
from collections.abc import Sequence

from meshmend.base.theme import FAINT, INK, MUTED, bare, picture
from meshmend.base.units import HOUR, duration_text
from meshmend.simulator.fleet.chart import WIDE
from meshmend.simulator.fleet.cubes import CubeStudy

SHADES = ("#c9ccd1", "#9aa3ad", "#7fb0d8", "#1f6fb2")


def draw_cubes(studies: Sequence[CubeStudy], path: str | os.PathLike[str]) -> None:
    """Write the chart."""
    with picture(path, WIDE, 4.2) as figure:
        axes = figure.subplots()
        figure.subplots_adjust(left=0.07, right=0.98, bottom=0.12, top=0.88)
        for place, study in enumerate(studies):
            for number, month in enumerate(study.months):
                at = place + (number - 1.5) * 0.2
                axes.bar(at, 100 * month.goodput, 0.18, color=SHADES[number], zorder=2)
                axes.annotate(
                    f"{month.rule}\n{100 * month.goodput:.1f} %", (at, 100 * month.goodput), xytext=(0, 3),
                    textcoords="offset points", ha="center", va="bottom", color=INK, fontsize=8,
                )  # fmt: skip
        axes.set_xticks(
            range(len(studies)), [f"hosts repaired in {duration_text(s.machine.repair * HOUR)}" for s in studies]
        )
        axes.set_ylim(0, 112)
        axes.set_ylabel("goodput in % of all chip time", color=MUTED)
        bare(axes)
        axes.grid(axis="y", color=FAINT, linewidth=0.7)
        machine = studies[0].machine
        figure.text(
            0.07, 0.94, f"{machine.mesh.size:,} chips in {machine.cubes} cubes for {machine.weeks:g} weeks",
            color=INK, fontsize=10, va="center",
        )  # fmt: skip
