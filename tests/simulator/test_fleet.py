"""A fleet beside closed formulas; speeds beside real plans; the verdict of a sweep; the command line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshmend import Mesh, SimulateError, bound, cli, plan
from meshmend.base.terminal import SILENT
from meshmend.cli import simulate_fleet
from meshmend.mesh.hole import KINDS, Piece, alike
from meshmend.mesh.planners.combs import comb_algbw
from meshmend.mesh.planners.trees import reach
from meshmend.simulator.fleet import Fleet, Outcome, Step, Study, Sweep, study, sweep
from meshmend.simulator.fleet import speeds as speeds_module
from meshmend.simulator.fleet.chip_hours import Cause
from meshmend.simulator.fleet.history import REPAIR_TIMES, History
from meshmend.simulator.fleet.speeds import Speeds, reference

ONE_HOST = Fleet(
    mesh=Mesh.parse("4x2"),
    weeks=200,
    jobs=30,
    policies=("wait",),
    rate={"host": 1 / 40},
    repair={"host": 5.0},
    repair_times="fixed",
    checkpoint=2.0,
    checkpoint_cost=0.1,
    detect=0.5,
    restart=1.0,
)


def near(outcome: Outcome, value: float, errors: float = 4.0) -> None:
    assert outcome.error < 0.004
    assert abs(outcome.goodput - value) < errors * outcome.error, (outcome.goodput, value, outcome.error)


def kept(rate: float, pause: float, interval: float, cost: float) -> float:
    """Useful hours between two failures: whole cycles of work and checkpoint after a pause (Daly 2006)."""
    return math.exp(-rate * pause) * interval / math.expm1(rate * (interval + cost))


@pytest.mark.parametrize("times", REPAIR_TIMES)
def test_wait_is_uptime_over_uptime_and_repair(times: str) -> None:
    always = replace(ONE_HOST, checkpoint=1e-6, checkpoint_cost=0.0, detect=0.0, restart=0.0, repair_times=times)
    near(study(always).outcomes["wait"], 40 / (40 + 5))


def test_wait_with_restarts_and_checkpoints() -> None:
    near(study(ONE_HOST).outcomes["wait"], kept(1 / 40, 1.0, 2.0, 0.1) / (40 + 5))


def test_spare_restarts_at_every_failure() -> None:
    fleet = replace(
        ONE_HOST,
        mesh=Mesh.parse("64x16"),
        rate={"host": 1 / 40 / 128},
        policies=("spare",),
        spares=8,
        repair={"host": 1e-6},
    )
    expected = kept(1 / 40, 1.5, 2.0, 0.1) / 40 * 128 / (128 + 8)
    near(study(fleet).outcomes["spare"], expected)


def test_youngs_interval_is_near_the_best() -> None:
    fleet = replace(ONE_HOST, checkpoint=None, restart=0.0, detect=0.0)
    young = fleet.interval
    assert young == pytest.approx(math.sqrt(2 * 0.1 * 40))
    at = {part: study(replace(fleet, checkpoint=part * young)).outcomes["wait"] for part in (0.25, 1.0, 4.0)}
    assert at[1.0].goodput > at[0.25].goodput + 0.01 and at[1.0].goodput > at[4.0].goodput + 0.01
    near(at[1.0], kept(1 / 40, 0.0, young, 0.1) / 45)


def test_no_failures_lose_only_checkpoints() -> None:
    fleet = Fleet(mesh=Mesh.parse("8x8"), weeks=1, jobs=2, rate={"host": 0.0}, checkpoint=2.0, checkpoint_cost=0.1)
    done = study(fleet)
    for name in ("wait", "restart", "route"):
        assert done.outcomes[name].goodput == pytest.approx(2.0 / 2.1, rel=1e-15)
    assert done.outcomes["spare"].goodput == pytest.approx(2.0 / 2.1 * 64 / 72, rel=1e-15)
    assert study(replace(fleet, checkpoint=None)).outcomes["wait"].goodput == 1.0


SMALL = Fleet(
    mesh=Mesh.parse("16x8 wrap=y"),
    weeks=2,
    jobs=12,
    policies=("wait", "restart", "spare", "route", "reload"),
    rate={"chip": 2e-5, "board": 2e-5, "host": 3e-4, "link": 5e-5},
    plans=4,
)


def test_same_seed_same_figures_and_all_chip_hours_are_told() -> None:
    first, again, other = study(SMALL), study(SMALL), study(replace(SMALL, seed=1))
    for name, outcome in first.outcomes.items():
        assert np.array_equal(outcome.useful, again.outcomes[name].useful)
        assert not np.array_equal(outcome.useful, other.outcomes[name].useful)
        chips = 128 + (8 if name == "spare" else 0)
        assert outcome.total == chips * 2 * 168
        assert outcome.useful.sum() + sum(outcome.lost.values()) == pytest.approx(outcome.total * 12, rel=1e-12)
    assert first.outcomes["route"].lost[Cause.ROLLBACK] == 0
    assert first.outcomes["route"].goodput > first.outcomes["reload"].goodput > first.outcomes["wait"].goodput
    assert first.solved and first.solved.agree and first.solved.own_time == pytest.approx(1.0)
    assert first.shown == again.shown and first.shown.failures > 0


def test_more_frequent_failures_cost_more() -> None:
    twice = study(replace(SMALL, rate={kind: 2 * rate for kind, rate in SMALL.rate.items()}))
    assert all(twice.outcomes[name].goodput < outcome.goodput for name, outcome in study(SMALL).outcomes.items())


@pytest.mark.parametrize("text", ["8x8", "12x8 wrap=y", "8x8 wrap=xy", "4x12"])
def test_what_a_packing_reaches_is_known_from_the_bound(text: str) -> None:
    for seed in range(6):
        mesh = Mesh.parse(text).fail_random(seed, chips=1 + seed % 3, links=seed % 2).largest()
        assert plan(mesh, algorithm="trees").algbw == pytest.approx(reach(bound(mesh).value), rel=1e-12)


@pytest.mark.parametrize("text", ["8x8", "16x4", "8x8 wrap=y", "12x8 wrap=x"])
def test_combs_in_closed_form(text: str) -> None:
    from meshmend.mesh.planners.combs import combs
    from meshmend.mesh.planners.plan import make_plan

    mesh = Mesh.parse(text)
    assert comb_algbw(mesh) == pytest.approx(make_plan(mesh, "trees", *combs(mesh)).algbw)


def test_speed_of_a_step() -> None:
    even = Step(sum_share=0.2, lanes=0)
    assert even.speed(100, 100, 1.0) == 1.0
    assert even.speed(100, 80, 0.5) == pytest.approx(1 / (0.8 * 100 / 80 + 0.2 / 0.5))
    lanes = Step(sum_share=0.2, lanes=16)
    assert lanes.speed(100, 99, 1.0) == pytest.approx(1 / (0.8 * 17 / 16 + 0.2))
    assert lanes.speed(100, 95, 1.0) == lanes.speed(100, 99, 1.0)
    assert lanes.speed(100, 94, 1.0) == pytest.approx(1 / (0.8 * 18 / 16 + 0.2))
    assert even.speed(100, 0, 1.0) == even.speed(100, 50, 0.0) == 0.0


def solved(mesh: Mesh, hole: tuple[Piece, ...], step: Step, algorithm: str = "trees") -> float:
    speeds = Speeds(mesh, step, algorithm)
    speeds.solve([(hole, 1.0)], SILENT, plans=0)
    return speeds.of(hole)


def test_a_speed_comes_from_the_plan_round_that_hole() -> None:
    mesh, step = Mesh.parse("8x8"), Step(sum_share=0.3, lanes=0)
    healthy = plan(mesh, algorithm="trees").algbw
    round_it = plan("8x8 -4x2@0,2", algorithm="trees").algbw
    host = Piece(0, 2, 4, 2)
    assert solved(mesh, (host,), step) == pytest.approx(1 / (0.7 * 64 / 56 + 0.3 * healthy / round_it))
    ring = solved(mesh, (host,), step, "ring")
    assert ring == pytest.approx(
        1 / (0.7 * 64 / 56 + 0.3 * plan(mesh, algorithm="ring").algbw / plan("8x8 -4x2@0,2", algorithm="ring").algbw)
    )
    assert solved(mesh, (Piece(0, 2, 1, 1),), step, "ring") == 0.0  # no ring goes through 63 chips


def test_a_chip_on_one_link_idles_where_that_is_faster() -> None:
    mesh, corner = Mesh.parse("8x8"), (Piece(0, 0, 1, 2, link=True),)
    healthy, without = plan(mesh, algorithm="trees").algbw, plan("8x8 -chip@0,0", algorithm="trees").algbw
    much, little = Step(sum_share=0.3, lanes=0), Step(sum_share=0.001, lanes=16)
    assert solved(mesh, corner, much) == pytest.approx(1 / (0.7 * 64 / 63 + 0.3 * healthy / without))
    assert solved(mesh, corner, little) == pytest.approx(1 / (0.999 + 0.001 * healthy))


def test_of_a_mesh_that_falls_apart_the_largest_piece_goes_on() -> None:
    mesh, step = Mesh.parse("8x4"), Step(sum_share=0.2, lanes=0)
    wall = (Piece(2, 0, 2, 2), Piece(2, 2, 2, 2))
    left = plan("4x4", algorithm="trees").algbw / plan(mesh, algorithm="trees").algbw
    assert solved(mesh, wall, step) == pytest.approx(1 / (0.8 * 32 / 16 + 0.2 / left), rel=0.01)


def test_rare_holes_take_the_lowest_of_their_kind() -> None:
    mesh, step = Mesh.parse("8x8"), Step(sum_share=0.5, lanes=0)
    often, rare = (Piece(0, 2, 4, 2),), (Piece(0, 0, 1, 1),)
    speeds = Speeds(mesh, step)
    told = speeds.solve([(often, 9.0), (rare, 1.0)], SILENT, most=1, plans=0)
    assert (told.holes, told.own) == (2, 1) and told.own_time == pytest.approx(0.9)
    lowest = plan("8x8 -4x2@0,2", algorithm="trees").algbw / plan(mesh, algorithm="trees").algbw
    assert speeds.of(rare) == pytest.approx(step.speed(64, 63, lowest))
    assert told.mean == pytest.approx(0.9 * speeds.of(often) + 0.1 * speeds.of(rare))


def test_large_meshes_take_theirs_from_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speeds_module, "EXACT", 128)
    mesh, step = Mesh.parse("32x16 wrap=y"), Step(sum_share=0.5, lanes=0)
    assert str(reference(mesh)) == "16x8 wrap=y"
    hole = alike(mesh, (Piece(8, 2, 4, 2),))
    scaled = Speeds(mesh, step)
    told = scaled.solve([(hole, 1.0)], SILENT)
    assert told.scaled_from == "16x8 wrap=y" and told.own_time == 0
    monkeypatch.undo()
    exact = solved(mesh, hole, step)
    assert 0.97 * exact < scaled.of(hole) < exact


def outcome(policy: str, goodput: float, spread: float = 0.0) -> Outcome:
    useful = 100 * (goodput + spread * np.array([-1.0, 1.0, -1.0, 1.0]))
    return Outcome(policy, useful, dict.fromkeys(Cause, 0.0), 100.0, ())


def at_size(mesh: str, route: float, spare: float, wait: float, spread: float = 0.0) -> Study:
    fleet = Fleet(mesh=Mesh.parse(mesh), jobs=4, policies=("route", "spare", "wait"))
    parts = outcome("route", route, spread), outcome("spare", spare), outcome("wait", wait)
    return Study(fleet, {part.policy: part for part in parts}, 0, 0.0, None, History(100.0, ()), 0)


def test_the_verdict_of_a_sweep() -> None:
    behind, little, much = (
        at_size("8x8", 0.5, 0.6, 0.9),
        at_size("16x8", 0.905, 0.6, 0.9),
        at_size("16x16", 0.9, 0.8, 0.1),
    )
    swept = Sweep((behind, little, much), 0.01)
    assert swept.pays_from(0.0) is little and swept.pays_from(0.01) is much
    assert swept.verdict.endswith("from 128 chips on, and by more than 1 % of all chip time from 256 chips on")
    assert swept.lead(little)[0].policy == "wait" and swept.lead(much)[0].policy == "spare"
    assert Sweep((much, behind), 0.01).pays_from(0.0) is None  # it must hold for all larger sizes
    chance = at_size("16x16", 0.9, 0.8, 0.1, spread=0.2)
    assert Sweep((chance,), 0.01).pays_from(0.0) is None
    assert "at no size" in Sweep((little,), 0.01).verdict


def test_a_sweep_of_small_meshes() -> None:
    swept = sweep(replace(SMALL, jobs=3, weeks=1), ["8x8", "4x4"])
    assert [one.fleet.mesh.size for one in swept.studies] == [16, 64]
    with pytest.raises(SimulateError, match="route and at least one more"):
        sweep(replace(SMALL, policies=("route",)), ["4x4"])


def test_rates_and_repair_times_by_kind() -> None:
    rates = simulate_fleet.read_rates("host=0.08%/day, link=0.5/year")
    assert rates == pytest.approx({"host": 0.0008 / 24, "link": 0.5 / 8766})
    assert simulate_fleet.read_repairs("90min") == pytest.approx(dict.fromkeys(KINDS, 1.5))
    assert simulate_fleet.read_repairs("host=1d") == {"host": 24}


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)

    def main(*more: str) -> tuple[int, str, str]:
        code = cli.main(["simulate", "fleet", *more])
        return code, *capsys.readouterr()

    return main


BASE = ("8x8", "--weeks", "2", "--jobs", "3", "--rate", "host=2%/day,link=0.1%/day", "--plans", "2")


def test_command(run: Run, tmp_path: Path) -> None:
    code, out, err = run(*BASE, "--json", "f.json", "--draw", "f.png")
    assert (code, err) == (0, "")
    for word in (
        "host 2 % a day",
        "checkpoint every",
        "noticing 1 min",
        "restart 10 min",
        "rerouting 30 s",
        "seed 0",
    ):
        assert word in out
    figures = json.loads((tmp_path / "f.json").read_text())
    for name, policy in figures["policies"].items():
        told = policy["useful_chip_hours"] + sum(policy["lost_chip_hours"].values())
        assert told == pytest.approx(policy["chip_hours"], rel=1e-12)
        assert f"{100 * policy['goodput']:.2f} ± " in out, name
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    assert run(*BASE, "--draw", "f.svg", "--json", "g.json")[0] == 0
    assert "<svg" in (tmp_path / "f.svg").read_text()
    assert (tmp_path / "g.json").read_text() == (tmp_path / "f.json").read_text()


def test_command_sweeps(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshmend.simulator.fleet import sweep as function

    monkeypatch.setattr(function, "__defaults__", (("4x4", "8x8", "8x16"),))
    code, out, _ = run(
        "--sweep", "--jobs", "3", "--weeks", "2", "--rate", "host=1%/day", "--draw", "s.svg", "--json", "s.json"
    )
    assert code == 0 and "route is" in out and (tmp_path / "s.svg").exists()
    figures = json.loads((tmp_path / "s.json").read_text())
    assert [size["chips"] for size in figures["sizes"]] == [16, 64, 128]
    assert figures["verdict"] in out


@pytest.mark.parametrize(
    ("words_", "says"),
    [
        (("--rate", "host=-1%/day"), "'-1%/day'"),
        (("--rate", "host=1%"), "expected something like 0.08%/day"),
        (("--rate", "disk=1%/day"), "expected chip, board, host or link"),
        (("--repair", "4"), "'4'"),
        (("--repair", "0h"), "give more than 0 h"),
        (("--repair", "link=4h"), "no repair time"),
        (("--checkpoint", "0s"), "expected more than 0"),
        (("--detect=-1s",), "'-1s'"),
        (("--weeks", "0"), "expected more than 0"),
        (("--weeks", "inf"), "expected more than 0"),
        (("--jobs", "0"), "whole number, 1 or more"),
        (("--spares", "-1"), "whole number, 0 or more"),
        (("--policies", "wait,hope"), "choose from wait, restart"),
        (("--policies", "wait,wait"), "each once"),
        (("--sum-share", "150%"), "expected 0 to 1"),
        (("--sum-share", "much"), "such as 15% or 0.15"),
        (("--sweep",), "has its own meshes"),
        (("--draw", "f.gif"), "ends in .png or .svg"),
        (("--json", "no/such/f.json"), "no such folder"),
        (("--draw", "no/such/f.svg"), "no such folder"),
        (("--json", "."), "cannot write"),
    ],
)
def test_bad_input_is_one_sentence(run: Run, words_: tuple[str, ...], says: str) -> None:
    code, out, err = run("8x8", *(("--weeks", "1") if "--weeks" not in words_ else ()), "--plans", "0", *words_)
    assert code == 2 and says in err
    assert err.startswith("meshmend: ") and err.count("\n") == 1
    assert not out or words_ == ("--json", ".")


def test_bad_meshes(run: Run) -> None:
    assert "begins with an intact mesh" in run("8x8", "-2x2@0,0")[2]
    assert "begins with an intact mesh" in run("1x1")[2]
