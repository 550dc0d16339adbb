"""Published steps: a file that says where it is from, and predictions that were calibrated on something else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from meshmend import SimulateError
from meshmend.errors import FormatError
from meshmend.simulator.papers.calibrated import begin, by_rate_alone, calibrated, line_of, start, worst_errors
from meshmend.simulator.papers.multipod import Multipod, multipod
from meshmend.simulator.papers.published import FILE, published, read
from meshmend.simulator.step.hardware import MACHINES

PAGE = Path(__file__).parents[2] / "docs" / "results" / "multipod.md"
WITHIN = {"resnet50": 0.1505, "ssd": 0.25, "transformer": 0.25, "maskrcnn": 0.25}


@pytest.fixture(scope="module")
def pods() -> Multipod:
    return multipod(["ssd"], chips=(16, 64))


def changed(change: object, *path: str | int) -> str:
    data = json.loads(FILE.read_text())
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = change
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (changed(" ", "source"), "without their source"),
        (changed(["16 0.6"], "models", "ssd", "calibrated_on"), "ssd is calibrated on 16 0.6: give two runs"),
        (changed(["4096 0.7 TF", "4096 0.7 JAX"], "models", "bert", "calibrated_on"), "two runs of different sizes"),
        (changed(["16 0.6", "99 0.6"], "models", "ssd", "calibrated_on"), "no run '99 0.6' of ssd: choose from 16 0.6"),
        (changed("vgg", "runs", 0, "model"), "no run '16 0.6' of resnet50"),
        (changed("vgg", "runs", 1, "model"), "a run of vgg, of which nothing else is said"),
    ],
)
def test_a_file_that_cannot_be_trusted(text: str, says: str) -> None:
    with pytest.raises(SimulateError, match=re.escape(says)):
        read(text)
    with pytest.raises(FormatError, match="source is missing"):
        read(json.dumps({key: value for key, value in json.loads(text).items() if key != "source"}))


def test_steps_fit_the_runs() -> None:
    """Steps take most of a run and not more than it; where a log does not tell, nothing is made up."""
    for run in published().runs:
        if run.steps:
            assert 0.7 < run.steps * run.step / run.run_s < 1.02, run
        assert run.batch * run.cores % (2 * run.chips) == 0 or run.batch < 2 * run.chips, run
        assert run.every < (run.steps or 10_000) + 1


@pytest.mark.parametrize("name", ["ssd", "bert", "transformer", "maskrcnn", "resnet50"])
def test_what_calibrates_is_met_exactly_and_nothing_else_is(name: str) -> None:
    logs = published()
    sizes = {run.chips for run in logs.calibrating(name)}
    for run in logs.of(name):
        if run.chips > 1024:  # a plan of that size takes seconds: docs/results/multipod.md has them
            continue
        error = line_of(run).at(calibrated(name)) / run.step - 1 if max(sizes) <= 1024 else None
        if error is not None:
            assert (abs(error) < 1e-9) == (run in logs.calibrating(name)), run
            assert run.chips in sizes or abs(error) < WITHIN[name]


def test_the_page_holds_what_it_promises() -> None:
    """The errors that the page prints: no size that was not used is farther off than the targets."""
    names = {"ResNet-50": "resnet50", "SSD-ResNet34": "ssd", "Transformer-big": "transformer", "Mask R-CNN": "maskrcnn"}
    line = re.compile(r"^(\S[\w .-]*?) +(\d+) +0\.[67](?: \w+)? +\d+ +[\d,]+ +\d +[\d.]+ +[\d.]+ +([+-][\d.]+) %", re.M)
    errors = line.findall(PAGE.read_text())
    assert len(errors) == 15
    for title, chips, error in errors:
        assert abs(float(error)) / 100 < WITHIN[names[title]], (title, chips)


def test_one_start_of_a_collective_serves_all() -> None:
    """The machine's figure is the one that its run gives, which is slow to compute on 2048 chips: on the page."""
    assert f"{1e6 * MACHINES['tpu-v3'].begin:.0f} µs in which a collective" in " ".join(PAGE.read_text().split())
    assert start().on(16) == pytest.approx(2531.18 - 18767 * 0.13118)
    assert start().on(4096) == pytest.approx(28.88 - 1720 * 0.01427)


@pytest.mark.explore
def test_what_takes_plans_of_thousands_of_chips() -> None:
    assert MACHINES["tpu-v3"].begin == pytest.approx(begin(), rel=0.01)
    assert worst_errors("bert") == []
    known, asked, error = next(iter(by_rate_alone("bert")))
    assert (known.chips, asked.chips) == (16, 4096)
    assert -0.15 < error < -0.05


def test_errors_that_could_be_wrong(pods: Multipod) -> None:
    """Only a run of a size that nothing calibrates is judged, and other pairs of sizes are owned up to."""
    roles = {(check.run.model, check.run.name): (check.role, check.tests) for check in pods.checks}
    assert roles["ssd", "16 0.6"] == ("calibrates", False)
    assert roles["ssd", "64 0.6"] == ("", True)
    assert [check.run_s for check in pods.checks if check.run.model == "ssd"] == [None, None]
    text = " ".join(pods.render().split())
    assert "SSD-ResNet34 calibrated on any two of its sizes with one core per replica: the worst error" in text
    assert "training_results_v0.6" in text
    assert "BERT-large was published at two sizes, so no error is left to print" in " ".join(PAGE.read_text().split())
