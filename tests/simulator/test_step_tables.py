"""The tables of steps, on small meshes: figures follow from steps, and published ones from the facts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meshmend import SimulateError
from meshmend.simulator.papers import TABLES, Table
from meshmend.simulator.papers.dead_host import Holes, holes
from meshmend.simulator.papers.failure_costs import MEASURED, faults
from meshmend.simulator.papers.multipod import VARIANTS, Multipod, multipod
from meshmend.simulator.papers.published import PUBLISHED, Published, batch_on, first, setting_of
from meshmend.simulator.step.step import step

RATES = {"resnet50": 0.2, "bert": 0.4, "ssd": 0.2, "transformer": 0.4}
SMALL = (
    Published("ssd", 64, 1.0, "here", 512, cores=8),
    Published("ssd", 16, 2.0, "there", 512, cores=4),
    Published("bert", 16, 1.0, "here", 512, 100),
)


@pytest.fixture(scope="module")
def holed() -> Holes:
    return holes(meshes=[("8x8", "8x8 -host@4,4")], of_peak=RATES)


@pytest.fixture(scope="module")
def pods() -> Multipod:
    return multipod(chips=(16, 64), points=SMALL, of_peak=RATES)


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
        assert row.trees.total < min(row.sharded.total, row.divided.total)
        assert row.cores == first(row.model).cores
        assert row.batch == batch_on(row.model, row.chips)
        if row.cores == 1:
            assert row.divided == row.sharded
    facts = json.loads(json.dumps(pods.facts()))
    assert facts["rows"][0]["plain_total"] == pods.rows[0].plain.total
    assert set(VARIANTS) < set(facts["rows"][0])


def test_checks_against_what_was_published(pods: Multipod) -> None:
    one, other, bert = pods.checks
    assert not any(check.calibrates for check in pods.checks), "these points are none of the published ones"
    assert one.error is None, "minutes without steps cannot be judged alone"
    published, predicted = 1.0 / 2.0, one.predicted.total / other.predicted.total
    assert other.error == pytest.approx(published / predicted - 1), "same batch: times relative to the first"
    assert bert.error == pytest.approx(bert.predicted.total / 0.6 - 1)
    assert bert.steps == pytest.approx(60 / bert.predicted.total)


def test_published_points_are_those_of_the_facts() -> None:
    steps = {(point.model, point.source): point.step for point in PUBLISHED if point.step}
    assert round(1e3 * (steps["resnet50", "TensorFlow"] or 0), 1) == 16.8
    assert round(1e3 * (steps["bert", "TensorFlow"] or 0), 1) == 47.5
    assert all(point.chips == 4096 for point in PUBLISHED if point.steps)
    assert [point.minutes for point in PUBLISHED if point.source == "MLPerf 0.6"] == [
        1.28,
        2.27,
        3.85,
        6.86,
        11.22,
        42.19,
    ]
    assert (batch_on("resnet50", 4096), batch_on("resnet50", 16)) == (65536, 4096)
    setting = setting_of(PUBLISHED[4], 0.2)
    assert (setting.chips, setting.cores, setting.replicas, setting.algorithm) == (4096, 8, 1024, "rowcol")


def test_faults() -> None:
    told: list[str] = []
    made = faults(tell=told.append)
    assert "AlexNet, shrink" in told
    cost = {(row.model, row.workers, row.policy): row for row in made.rows}
    assert len(cost) == 2 * 5 * 4
    for name in ("alexnet", "googlenet"):
        for workers in (4, 8, 16, 32, 64):
            totals = [cost[name, workers, policy].total for policy in ("shrink", "spare", "restart", "checkpoint")]
            assert totals == sorted(totals), "least work is lost by those who go on"
        shrunk = [cost[name, workers, "shrink"] for workers in (4, 8, 16, 32, 64)]
        assert [row.again for row in shrunk] == sorted((row.again for row in shrunk), reverse=True)
        assert all(row.sum < row.step for row in shrunk)
    assert cost["alexnet", 4, "spare"].state > cost["googlenet", 4, "spare"].state


def test_faults_of_the_measured_repairs() -> None:
    """Beyond an ordinary step and what was computed again, in the words of docs/guide.md."""
    page = (Path(__file__).parents[2] / "docs" / "guide.md").read_text()
    for line in MEASURED.values():
        assert f"| {1e3 * line.step:.0f} ms | {1e3 * line.total:.0f} ms (" in page
    assert [round(1e3 * MEASURED[policy].repair) for policy in ("shrink", "restart")] == [0, 1572]
    often, seldom = (faults(["alexnet"], [4], every).rows[-1] for every in (10, 1000))
    assert often.total < seldom.total
    assert often.each_step > seldom.each_step


@pytest.mark.parametrize(("options", "says"), [({"every": 0}, "every 0 steps"), ({"workers": [1]}, "at least 2")])
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
    slow = holes(["bert"], [("4x4", "4x4 -2x2@0,0")], {"bert": 0.1}).rows[0]
    fast = holes(["bert"], [("4x4", "4x4 -2x2@0,0")], {"bert": 0.2}).rows[0]
    assert slow.whole.compute == pytest.approx(2 * fast.whole.compute)
    point = replace(PUBLISHED[0], chips=64, batch=1024)
    assert step(setting_of(point, 0.2)).total > step(setting_of(point, 0.4)).total
