"""Pictures of a fleet: one job over time under each policy, and goodput over size."""

from __future__ import annotations

import os
from typing import Any

from meshmend.base.theme import FAINT, INK, MARK, MUTED, SERIES, bare, picture
from meshmend.simulator.fleet.fleet import Outcome, Study
from meshmend.simulator.fleet.policies import POLICIES
from meshmend.simulator.fleet.speeds import EXACT
from meshmend.simulator.fleet.sweep import Sweep

COLOUR = dict(zip(POLICIES, (SERIES[3], SERIES[1], SERIES[4], SERIES[2], SERIES[0]), strict=True))
WIDE, PANEL, LOST, HEAD, FOOT = 10.0, 0.95, 1.9, 0.62, 0.5
"""Inches."""


def draw_time(study: Study, path: str | os.PathLike[str]) -> None:
    """One job's speed over its weeks, a panel for each policy with each failure marked; below, what each has lost."""
    outcomes = list(study.outcomes.values())
    high = HEAD + FOOT + PANEL * len(outcomes) + LOST
    with picture(path, WIDE, high) as figure:
        heights = [PANEL] * len(outcomes) + [LOST]
        panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
        figure.subplots_adjust(left=0.1, right=0.88, bottom=FOOT / high, top=1 - HEAD / high, hspace=0.42)
        for axes, outcome in zip(panels, outcomes, strict=False):
            _draw_speed(axes, study, outcome)
        _draw_lost(panels[-1], study)
        panels[-1].set_xlabel("days", color=MUTED)
        fleet = study.fleet
        text = (
            f"One job on {fleet.mesh} ({fleet.mesh.size:,} chips) through {study.shown.failures} failures: "
            "its speed under each policy (1: healthy), and chip-hours lost"
        )
        figure.text(0.1, 1 - 0.2 / high, text, color=INK, fontsize=10, va="center")
        figure.text(0.88, 1 - 0.42 / high, "▾ a failure", color=MARK, fontsize=8, va="center", ha="right")


def _draw_speed(axes: Any, study: Study, outcome: Outcome) -> None:
    days = [stretch.begin / 24 for stretch in outcome.stretches] + [study.fleet.hours / 24]
    speeds = [stretch.speed for stretch in outcome.stretches]
    speeds.append(speeds[-1])
    colour = COLOUR[outcome.policy]
    axes.fill_between(days, speeds, step="post", color=colour, alpha=0.25, linewidth=0)
    axes.step(days, speeds, where="post", color=colour, linewidth=0.9)  # short pauses show as spikes
    failed = [change.time / 24 for change in study.shown.changes if change.failed]
    axes.plot(failed, [1.15] * len(failed), linestyle="", marker="v", markersize=3.5, color=MARK, clip_on=False)
    axes.set_xlim(0, study.fleet.hours / 24)
    axes.set_ylim(0, 1.05)
    axes.set_yticks([0, 1], ["0", "1"])
    axes.set_ylabel(outcome.policy, color=INK)
    bare(axes)
    goodput = outcome.goodputs[study.shown_job]
    axes.text(1.015, 0.66, f"{100 * goodput:.1f} %", transform=axes.transAxes, color=INK, fontsize=11, va="center")
    axes.text(1.015, 0.3, "goodput", transform=axes.transAxes, color=MUTED, fontsize=8, va="center")


def _draw_lost(axes: Any, study: Study) -> None:
    """Chip-hours that did not become useful work so far; spares standing by and work done twice included."""
    ends = {}
    for outcome in study.outcomes.values():
        each_hour = outcome.total / study.fleet.hours
        times = [stretch.begin for stretch in outcome.stretches] + [study.fleet.hours]
        useful = [stretch.useful for stretch in outcome.stretches] + [float(outcome.useful[study.shown_job])]
        lost = [each_hour * time - done for time, done in zip(times, useful, strict=True)]
        axes.plot([time / 24 for time in times], lost, color=COLOUR[outcome.policy], linewidth=1.4)
        ends[outcome.policy] = lost[-1]
    top = max(*ends.values(), 1.0) * 1.05
    axes.set_ylim(0, top)
    axes.set_ylabel("chip-hours lost", color=INK)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    bare(axes)
    axes.grid(axis="y", color=FAINT, linewidth=0.7)
    _name_ends(axes, ends, top * 0.16 / LOST, "{name}")


def _name_ends(axes: Any, ends: dict[str, float], least: float, form: str) -> None:
    """Curves' names at their ends, moved so that they stand at least so far apart."""
    below = -least
    for name in sorted(ends, key=lambda name: ends[name]):
        below = max(ends[name], below + least)
        axes.annotate(
            form.format(name=name, end=ends[name]), (1.015, below), xycoords=axes.get_yaxis_transform(), va="center",
            color=COLOUR[name], fontsize=9, annotation_clip=False,
        )  # fmt: skip


def draw_sweep(sweep: Sweep, path: str | os.PathLike[str]) -> None:
    """Goodput over chips, a curve for each policy, with the size from which on routing around the hole pays."""
    sizes = [study.fleet.mesh.size for study in sweep.studies]
    names = list(sweep.studies[0].outcomes)
    with picture(path, WIDE, 5.2) as figure:
        axes = figure.subplots()
        figure.subplots_adjust(left=0.07, right=0.87, bottom=0.13, top=0.86)
        ends = {}
        for name in names:
            values = [100 * study.outcomes[name].goodput for study in sweep.studies]
            own = {"linewidth": 2.2, "zorder": 4} if name == sweep.policy else {"linewidth": 1.5, "zorder": 3}
            axes.plot(sizes, values, color=COLOUR[name], marker="o", markersize=4, **own)
            ends[name] = values[-1]
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.set_ylim(0, 101)
        axes.set_xlabel("chips", color=MUTED)
        axes.set_ylabel("goodput in % of all chip time", color=MUTED)
        bare(axes)
        axes.grid(axis="y", color=FAINT, linewidth=0.7)
        _name_ends(axes, ends, 4.5, "{name} {end:.1f} %")
        _mark_pays(axes, sweep)
        figure.text(0.07, 0.95, sweep.verdict.capitalize(), color=INK, fontsize=10, va="center")
        if sizes[-1] > EXACT:
            note = f"holes of meshes of more than {EXACT:,} chips: algbw scaled from smaller meshes"
            figure.text(0.07, 0.905, note, color=MUTED, fontsize=8, va="center")


def _mark_pays(axes: Any, sweep: Sweep) -> None:
    pays = sweep.pays_from(sweep.worth)
    if not pays:
        return
    size = pays.fleet.mesh.size
    last = sweep.studies[-1] is pays
    axes.axvline(size, color=MUTED, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.annotate(
        f"{sweep.policy} pays from {size:,} chips on", (size, 3), xytext=(-5 if last else 5, 0),
        textcoords="offset points", ha="right" if last else "left", va="bottom", color=MUTED, fontsize=8,
    )  # fmt: skip
