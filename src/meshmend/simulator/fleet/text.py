"""A study or a sweep as a table, with everything that was assumed; and as plain data for JSON."""

from __future__ import annotations

import math
from typing import Any

from meshmend.base.terminal import table
from meshmend.base.units import HOUR, duration_text, percent, plural
from meshmend.mesh.hole import KINDS, count
from meshmend.mesh.planners import ALGORITHMS
from meshmend.simulator.fleet.chip_hours import Cause
from meshmend.simulator.fleet.fleet import Fleet, Study
from meshmend.simulator.fleet.history import REPAIR_TIMES
from meshmend.simulator.fleet.sweep import Sweep


def describe(study: Study) -> str:
    """The table of one study."""
    fleet = study.fleet
    each = fleet.jobs * fleet.weeks
    outcomes = list(study.outcomes.values())
    head = ["policy", *study.outcomes]
    rows = [
        ["goodput", *(_with_error(outcome.goodput, outcome.error) for outcome in outcomes)],
        ["lost chip-hours per job-week", *(f"{sum(outcome.lost.values()) / each:,.0f}" for outcome in outcomes)],
    ]
    for cause in Cause:
        if any(outcome.lost[cause] for outcome in outcomes):
            parts = (outcome.lost[cause] / (outcome.total * fleet.jobs) for outcome in outcomes)
            rows.append([f"  {cause}", *(_percent(part) if part else "·" for part in parts)])
    lines = [
        f"mesh      {fleet.mesh}: {fleet.mesh.size:,} chips, {count(fleet.mesh, 'host'):,} hosts, "
        f"{count(fleet.mesh, 'link'):,} links",
        *_assumed(fleet),
        f"watched   {plural(fleet.jobs, 'job')} of {fleet.weeks:g} weeks ({each:,g} job-weeks), "
        f"seed {fleet.seed}: {study.failures:,} failures, something dead {_percent(study.holed)} of the time",
        *_solved(study),
        "",
        table(head, rows),
        "",
        "goodput is useful chip time over all chip time, spares included; below it, where the rest went",
    ]
    return "\n".join(lines)


def describe_sweep(sweep: Sweep) -> str:
    """The table of a sweep."""
    first = sweep.studies[0].fleet
    names = list(first.policies)
    rows = []
    for study in sweep.studies:
        other, ahead, error = sweep.lead(study)
        rows.append(
            [
                f"{study.fleet.mesh.size:,}",
                str(study.fleet.mesh),
                f"{24 * study.fleet.failures_an_hour:.2f}",
                _time(study.fleet.interval),
                *(_percent(study.outcomes[name].goodput) for name in names),
                f"{100 * ahead:+.2f} ± {100 * error:.2f} over {other.policy}",
                study.solved.scaled_from if study.solved and study.solved.scaled_from else "itself",
            ]
        )
    lead = f"{sweep.policy} ahead by"
    head = ["chips", "mesh", "failures a day", "checkpoint every", *names, lead, "holes solved on"]
    lines = [
        *_assumed(first, many=True),
        f"watched   {plural(first.jobs, 'job')} of {first.weeks:g} weeks at each size, seed {first.seed}",
        "",
        table(head, rows),
        "",
        sweep.verdict,
    ]
    return "\n".join(lines)


def data(study: Study) -> dict[str, Any]:
    """A study as JSON holds it; times in hours."""
    fleet, solved = study.fleet, study.solved
    return {
        "mesh": str(fleet.mesh),
        "chips": fleet.mesh.size,
        "weeks": fleet.weeks,
        "jobs": fleet.jobs,
        "seed": fleet.seed,
        "rate_per_hour": dict(fleet.rate),
        "repair_hours": {kind: fleet.repair[kind] for kind in fleet.rate if kind in fleet.repair},
        "repair_times": fleet.repair_times,
        "checkpoint_hours": fleet.interval if fleet.interval < math.inf else None,
        "checkpoint_cost_hours": fleet.checkpoint_cost,
        "detect_hours": fleet.detect,
        "restart_hours": fleet.restart,
        "reroute_hours": fleet.reroute,
        "spare_hosts": fleet.spare_hosts,
        "sum_share": fleet.step.sum_share,
        "lanes": fleet.step.lanes,
        "algorithm": fleet.algorithm,
        "failures": study.failures,
        "holed": study.holed,
        "holes": None if solved is None else dict(vars(solved)),
        "policies": {
            outcome.policy: {
                "goodput": outcome.goodput,
                "standard_error": outcome.error if fleet.jobs > 1 else None,
                "chip_hours": outcome.total * fleet.jobs,
                "useful_chip_hours": float(outcome.useful.sum()),
                "lost_chip_hours": {cause.name.lower(): chip_hours for cause, chip_hours in outcome.lost.items()},
                "goodput_of_jobs": outcome.goodputs.tolist(),
            }
            for outcome in study.outcomes.values()
        },
    }


def sweep_data(sweep: Sweep) -> dict[str, Any]:
    """A sweep as JSON holds it."""
    sizes = {"ahead_from_chips": sweep.pays_from(0.0), "pays_from_chips": sweep.pays_from(sweep.worth)}
    return {
        "verdict": sweep.verdict,
        "worth": sweep.worth,
        **{name: study.fleet.mesh.size if study else None for name, study in sizes.items()},
        "sizes": [data(study) for study in sweep.studies],
    }


def _with_error(value: float, error: float) -> str:
    return f"{100 * value:.2f} ± {100 * error:.2f} %" if error < math.inf else _percent(value)


def _percent(share: float) -> str:
    return percent(share, 2)


def _time(hours: float) -> str:
    return duration_text(hours * HOUR)


def _assumed(fleet: Fleet, many: bool = False) -> list[str]:
    failing = [kind for kind in KINDS if fleet.rate.get(kind)]
    rates = ", ".join(f"{kind} {2400 * fleet.rate[kind]:.3g} % a day" for kind in failing) or "none"
    repairs = ", ".join(f"{kind} {_time(fleet.repair[kind])}" for kind in failing) or "none"
    each_day = "" if many else f", {24 * fleet.failures_an_hour:.2f} a day in all"
    by = "as given" if fleet.checkpoint is not None else "Young's interval"
    every = f"({by})" if many else f"every {_time(fleet.interval)} ({by})"
    spares = "1 spare host for every 100" if fleet.spares is None and many else plural(fleet.spare_hosts, "spare host")
    lanes = f"{fleet.step.lanes} lanes per chip" if fleet.step.lanes else "work divides evenly"
    return [
        f"failures  {rates}{each_day}; repair {repairs} ({REPAIR_TIMES[fleet.repair_times].about})",
        f"costs     checkpoint {every} takes {_time(fleet.checkpoint_cost)}, noticing {_time(fleet.detect)}, "
        f"restart {_time(fleet.restart)}, rerouting {_time(fleet.reroute)}, {spares}",
        f"step      {100 * fleet.step.sum_share:g} % of a healthy step is exposed sum, {lanes}, "
        f"{fleet.algorithm} around the hole",
    ]


def _solved(study: Study) -> list[str]:
    solved = study.solved
    if solved is None or not solved.holes:
        return []
    of = f"holes     {solved.holes:,} different"
    if solved.scaled_from:
        how = f"algbw scaled from random holes on {solved.scaled_from}"
    elif ALGORITHMS[study.fleet.algorithm].reach:
        agree = "just as fast" if solved.agree else "NOT all as fast: the plans' own figures are used"
        how = (
            f"algbw from its own exact bound in {_percent(solved.own_time)} of hole time; {solved.planned} also "
            f"planned in full ({_percent(solved.planned_time)} of hole time){', ' + agree if solved.planned else ''}"
        )
    else:
        how = (
            f"{solved.own:,} planned in full ({_percent(solved.own_time)} of hole time), the others as slow as the "
            "slowest of these with as many pieces"
        )
    return [f"{of}: {how}", f"          speed around a hole {solved.mean:.4f} on average, {solved.lowest:.4f} at least"]
