"""The tables of steps, on small meshes: figures follow from steps, and published ones from the facts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshmend import SimulateError
from meshmend.run.supervisor import POLICIES
from meshmend.simulator.papers import TABLES, Table
from meshmend.simulator.papers.dead_host import Holes, holes
from meshmend.simulator.papers.failure_costs import faults
from meshmend.simulator.papers.multipod import VARIANTS, Multipod, multipod
from meshmend.simulator.papers.published import published
from meshmend.simulator.papers.recoveries import FIRST, RECOVERIES, REPAIRS, STARTS
from meshmend.simulator.step.run import Rates

RATES = {"resnet50": Rates(0.4, 0.003), "bert": Rates(0.5, 0.005)}


@pytest.fixture(scope="module")
def holed() -> Holes:
    return holes(meshes=[("8x8", "8x8 -host@4,4")], rates=RATES)


@pytest.fixture(scope="module")
def pods() -> Multipod:
    return multipod(["ssd", "transformer", "maskrcnn"], chips=(16, 64))


def test_holes(holed: Holes) -> None:
    assert len(holed.rows) == 2 * 3
    for row in holed.rows:
        assert (row.chips, row.live) == (64, 56)
        assert row.whole.batch / row.chips == row.hole.batch / row.live == holed.examples[row.model]
        assert 0 < row.loss < 0.3
        assert row.loss == pytest.approx(1 - row.live / row.chips * row.whole.total / row.hole.total)
    text = holed.render()
    assert all(name in text for name in ("8x8 -host@4,4", "rowpair", "trees", "calibrated"))


def test_multipod(pods: Multipod) -> None:
    for row in pods.rows:
        assert row.two_d.total <= row.plain.total * 1.05, "a ring may win by a little on few chips"
        assert row.sharded.total < row.two_d.total
        assert row.trees.total < row.divided.total
        run = next(run for run in published().of(row.model) if run.chips == row.chips)
        assert (row.batch, row.cores) == (run.batch, run.cores)
        if row.cores == 1:
            assert row.divided == row.sharded
    facts = json.loads(json.dumps(pods.facts()))
    assert facts["rows"][0]["plain_total"] == pods.rows[0].plain.total
    assert set(VARIANTS) < set(facts["rows"][0])


def test_faults() -> None:
    told: list[str] = []
    made = faults(tell=told.append)
    assert "AlexNet, shrink" in told
    rows = {(row.model, row.workers, row.policy): row for row in made.rows}
    cost = {key: row.cost for key, row in rows.items()}
    assert list(REPAIRS) == [4, 8, 16, 32]
    assert len(cost) == 2 * len(REPAIRS) * len(RECOVERIES)
    for name in ("alexnet", "googlenet"):
        for workers in REPAIRS:
            again = [cost[name, workers, policy].again for policy in RECOVERIES]
            assert again[0] < again[1], "all survivors compute the dead one's lanes, or one spare does"
            assert cost[name, workers, "checkpoint"].total == max(cost[name, workers, p].total for p in RECOVERIES)
        shrunk = [rows[name, workers, "shrink"] for workers in REPAIRS]
        assert [row.cost.again for row in shrunk] == sorted((row.cost.again for row in shrunk), reverse=True)
        assert all(row.sum < row.step for row in shrunk)
    assert cost["alexnet", 4, "spare"].state > cost["googlenet", 4, "spare"].state
    assert all(line in made.render() for line in ("as measured (ms)", "seen", "agreed"))


def test_faults_of_the_measured_repairs() -> None:
    """Every part was measured and none is cut at zero; starts are those of docs/guide.md."""
    page = (Path(__file__).parents[2] / "docs" / "guide.md").read_text()
    for line in STARTS.values():
        assert f"| {1e3 * line.step:.0f} ms | {1e3 * line.total:.0f} ms (" in page
        assert line.repair > 0
    assert all(f"| {count} | {seconds} s (" in page for count, seconds in FIRST.items())
    restart, checkpoint = STARTS["restart"], STARTS["checkpoint"]
    assert restart.with_workers(4) == restart.repair < restart.with_workers(8)
    assert checkpoint.with_workers(32) == pytest.approx(checkpoint.repair * FIRST[32] / FIRST[4])
    for workers, repair in REPAIRS.items():
        assert min(repair.detect, repair.shrink, repair.exchange) > 0
        rows = [row for row in faults(["alexnet"], [workers]).rows if row.policy in ("shrink", "spare")]
        assert {row.cost.repair for row in rows} == {repair.detect + repair.revoke + repair.shrink + repair.exchange}
    often, seldom = (faults(["alexnet"], [4], every).rows[-1].cost for every in (10, 1000))
    assert often.total < seldom.total
    assert often.each_step > seldom.each_step


def test_every_policy_of_the_table_is_one_of_a_run() -> None:
    """The two do not know each other: a run must not load the simulators."""
    assert {*STARTS} < {*RECOVERIES} < {*POLICIES}


@pytest.mark.parametrize(
    ("options", "says"),
    [({"every": 0}, "every 0 steps"), ({"workers": [1]}, "at least 2"), ({"workers": [64]}, "choose one of these")],
)
def test_faults_that_cannot_be(options: dict[str, object], says: str) -> None:
    with pytest.raises(SimulateError, match=says):
        faults(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_charts(holed: Holes, pods: Multipod, tmp_path: Path, suffix: str) -> None:
    tables: dict[str, Table] = {"holes": holed, "pods": pods, "faults": faults(workers=(4, 8))}
    for name, made in tables.items():
        path = tmp_path / f"{name}.{suffix}"
        made.draw(str(path))
        assert path.stat().st_size > 5000


def test_tables_are_named_and_no_figure_is_kept() -> None:
    assert list(TABLES) == ["mesh-holes", "multipod", "mpi-faults"]
    slow = holes(["bert"], [("4x4", "4x4 -2x2@0,0")], {"bert": Rates(0.1, 0.01)}).rows[0]
    fast = holes(["bert"], [("4x4", "4x4 -2x2@0,0")], {"bert": Rates(0.2, 0.02)}).rows[0]
    assert slow.whole.compute == pytest.approx(2 * fast.whole.compute)
    assert 2 * slow.whole.fixed == fast.whole.fixed == pytest.approx(0.02)
