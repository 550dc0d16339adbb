"""The registry of planners: capabilities are true, and whatever takes an algorithm's name takes it from here."""

from __future__ import annotations

import re

import pytest

from meshmend import ALGORITHMS, LINKS, Mesh, PlanError, cli
from meshmend.mesh.planners import Planner
from meshmend.simulator.fleet.fleet import AROUND_HOLES


def test_names_and_papers() -> None:
    assert all(name == planner.name for name, planner in ALGORITHMS.items())
    assert [name for name, planner in ALGORITHMS.items() if 3 in planner.dims] == ["trees"]
    assert all(re.fullmatch(r"\d{4}\.\d{5}", planner.paper) for planner in ALGORITHMS.values() if planner.paper)
    assert [name for name, planner in ALGORITHMS.items() if not planner.paper] == ["trees"]


@pytest.mark.parametrize("planner", ALGORITHMS.values(), ids=ALGORITHMS)
def test_capabilities_are_true(planner: Planner) -> None:
    whole, holed = Mesh.parse("6x6"), Mesh.parse("6x6 -2x2@2,2")
    assert planner(whole).algorithm == planner.name
    if planner.needs_intact:
        with pytest.raises(PlanError):
            planner(holed)
    else:
        made = planner(holed)
        if planner.reach:
            assert made.algbw == pytest.approx(planner.reach(made.bound.value))
    if planner.through_switch:
        assert max(len(set(up[up >= 0].tolist())) for up in planner(whole).up) <= 4
        assert all(len(planner(whole).mesh.live) - 1 == (up >= 0).sum() for up in planner(whole).up)
    if planner.along_rows:
        load = planner.along_rows(whole).load.reshape(-1, 4)
        assert load[:, [0, 2]].max() < load[:, [1, 3]].max() / 2, "columns are hardly loaded"


def test_the_command_line_shows_the_registered_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words, names in (
        (["plan"], ["auto", *ALGORITHMS]),
        (["run"], list(ALGORITHMS)),
        (["simulate"], list(ALGORITHMS)),
        (["simulate", "step"], list(ALGORITHMS)),
        (["simulate", "fleet"], list(AROUND_HOLES)),
        (["simulate"], list(LINKS)),
    ):
        assert cli.main([*words, "--help"]) == 0
        shown = " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().out).split())  # however wide the terminal is
        assert ", ".join(names) in shown
