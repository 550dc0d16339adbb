"""The study of cubes as tables, with everything that was assumed."""

from __future__ import annotations

from collections.abc import Sequence

from meshmend.base.terminal import table
from meshmend.base.units import HOUR, duration_text
from meshmend.mesh.hole import count
from meshmend.simulator.fleet.chip_hours import Cause
from meshmend.simulator.fleet.cubes import CubeStudy


def describe(studies: Sequence[CubeStudy]) -> str:
    """All tables: one for each time to repair."""
    machine = studies[0].machine
    costs, step = machine.costs, machine.step
    lines = [
        f"machine   {machine.mesh}: {machine.mesh.size:,} chips, {machine.cubes} cubes, "
        f"{count(machine.mesh, 'host'):,} hosts",
        f"failures  a host {100 * 24 * machine.rate:.3g} % a day, alone and independently; no links, no switches",
        f"costs     checkpoint every {_time(costs.interval)} (Young's interval) takes {_time(costs.checkpoint)}, "
        f"noticing {_time(costs.detect)}, restart {_time(costs.restart)}, rerouting {_time(costs.reroute)}",
        f"step      {100 * step.sum_share:g} % of a healthy step is exposed sum, "
        + (f"{step.lanes} lanes per chip" if step.lanes else "work divides evenly")
        + "; speed goes with the chips in use",
        "assumed   any number of healthy cubes forms a torus that is as fast per chip as the whole machine",
        f"watched   {machine.jobs} jobs of {machine.weeks:g} weeks, seed {machine.seed}",
    ]
    for study in studies:
        lines += ["", *_one(study)]
    lines += ["", "goodput is useful chip time over all chip time of the machine, cubes that stand by included"]
    return "\n".join(lines)


def _one(study: CubeStudy) -> list[str]:
    machine, months = study.machine, study.months
    at_95, enough = study.healthy
    rows = [
        ["goodput", *(f"{100 * month.goodput:.2f} ± {100 * month.error:.2f} %" for month in months)],
        ["chips at work", *(f"{month.chips:,.0f}" for month in months)],
    ]
    for cause in Cause:
        if any(month.lost[cause] for month in months):
            parts = (month.lost[cause] for month in months)
            rows.append([f"  {cause}", *(f"{100 * part:.2f} %" if part else "·" for part in parts)])
    return [
        f"repair    {_time(machine.repair)} (exponential, mean): {study.failures:,} failures; {at_95} of "
        f"{machine.cubes} cubes healthy 95 % of the time, {machine.needed} for {100 * enough:.1f} %; "
        f"algbw around the holes at least {100 * study.relative:.1f} %",
        table(["rule", *(month.rule for month in months)], rows),
    ]


def _time(hours: float) -> str:
    return duration_text(hours * HOUR)
