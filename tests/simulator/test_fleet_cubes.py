"""Cubes with a dead host, left out or used: every chip-hour is accounted for, and each rule does what it says."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from meshmend import Mesh, SimulateError
from meshmend.cli import main
from meshmend.mesh.hole import count
from meshmend.simulator.fleet.chip_hours import Account, Cause
from meshmend.simulator.fleet.cubes import Machine, Speeds, _follow, rules, study
from meshmend.simulator.fleet.history import history
from meshmend.simulator.fleet.policies import Costs
from meshmend.simulator.fleet.speeds import Step

COSTS = Costs(interval=1.0, checkpoint=0.0, detect=0.1, restart=0.5, reroute=0.05)
MACHINE = Machine(
    mesh=Mesh.parse("8x8x8 wrap=xyz"), needed=7, weeks=1, jobs=3, rate=0.002, costs=COSTS, step=Step(lanes=0)
)


def test_all_chip_hours_are_useful_or_lost() -> None:
    done = study(MACHINE)
    assert done.failures > 20
    for month in done.months:
        assert month.goodput + sum(month.lost.values()) == pytest.approx(1)
        assert 0 < month.goodput < 1 and month.chips <= MACHINE.mesh.size
    assert [month.rule for month in done.months] == ["7 cubes", "all healthy", "reload", "route"]
    at_95, enough = done.healthy
    assert 0 <= at_95 <= 8 and 0 < enough < 1 and 0.5 < done.relative <= 1


def test_without_failures_only_cubes_that_stand_by_are_lost() -> None:
    done = study(replace(MACHINE, rate=0.0))
    assert [month.goodput for month in done.months] == pytest.approx([7 / 8, 1, 1, 1])
    assert done.healthy == (8, 1.0)


def follow(rule: str, failures: list[tuple[float, int, float]], hours: float = 20.0) -> Account:
    """One job with these failures: when, which host, for how long."""
    account = Account(MACHINE.mesh.size, math.inf, 0.0)
    past = history(MACHINE.mesh, hours, [(time, "host", which, lasts) for time, which, lasts in failures])
    _follow(rules(7)[rule](MACHINE, Speeds(MACHINE), account), past)
    return account


def test_a_spare_cube_takes_the_place_of_one_and_a_second_failure_waits() -> None:
    once = follow("7 cubes", [(10.0, 0, 5.0)])
    # All is done again from the beginning, as no checkpoint was written, on seven cubes of eight.
    assert once.useful == pytest.approx(512 * 7 / 8 * (10 - 0.6))
    assert once.lost[Cause.STOPPED] == 0
    hosts = count(MACHINE.mesh, "host")
    both = follow("7 cubes", [(10.0, 0, 5.0), (10.0, hosts - 1, 5.0)])
    assert both.lost[Cause.STOPPED] == pytest.approx(512 * (5 - 0.1))


def test_a_failure_in_a_cube_that_stands_by_costs_nothing() -> None:
    idle = count(MACHINE.mesh, "host") - 1
    assert follow("7 cubes", [(10.0, idle, 5.0)]).useful == pytest.approx(512 * 7 / 8 * 20)


def test_route_goes_on_without_the_host_alone() -> None:
    account = follow("route", [(10.0, 0, 5.0)])
    around = Speeds(MACHINE).of(history(MACHINE.mesh, 1, [(0.0, "host", 0, 9.0)]).changes[0].hole)
    assert 0.9 < around < 1
    assert account.useful == pytest.approx(512 * (15 - 0.05 + (5 - 0.15) * around))
    assert account.lost[Cause.ROLLBACK] == 0
    assert follow("reload", [(10.0, 0, 5.0)]).lost[Cause.ROLLBACK] == pytest.approx(512 * 10)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mesh": Mesh.parse("16x32")}, "is not built of whole cubes"),
        ({"mesh": Mesh.parse("8x8x6")}, "is not built of whole cubes"),
        ({"needed": 9}, "9 cubes of 8: give 1 to 8"),
        ({"jobs": 0}, "at least 1 job"),
    ],
)
def test_bad_input_is_one_sentence(changes: dict[str, object], says: str) -> None:
    with pytest.raises(SimulateError, match=says):
        replace(MACHINE, **changes)  # type: ignore[arg-type]


def test_the_command_prints_a_table_for_each_repair_time(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "simulate",
        "cubes",
        "8x8x8 wrap=xyz",
        "--needed",
        "7",
        "--jobs",
        "2",
        "--weeks",
        "1",
        "--repair",
        "4h,30h",
    ]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert printed.count("goodput  ") == 2 and "512 chips, 8 cubes, 128 hosts" in printed
    assert main(["simulate", "cubes", "16x32"]) == 2
    assert "not built of cubes" in capsys.readouterr().err
