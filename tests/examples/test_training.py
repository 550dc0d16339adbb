"""Every example of a training job runs, learns, and ends the same when a worker dies."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from meshmend.testing import Fault
from tests.jobs.conftest import job as job
from tests.jobs.jobs import Job

FOLDER = Path(__file__).parents[2] / "examples"
SMALL = {
    "digits_jax": ["--steps", "12"],
    "digits_torch": ["--steps", "12"],
    "text_jax": ["--steps", "8", "--characters", "8000", "--width", "16"],
    "text_torch": ["--epochs", "2", "--characters", "10000", "--width", "16", "--layers", "1"],
}


QUICK = ("digits_jax", "text_torch")
"""One of each library and of each data set."""


def script(name: str) -> list[object]:
    return [FOLDER / f"{name}.py", *SMALL[name]]


def alone(name: str) -> str:
    command = [sys.executable, *map(str, script(name))]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def test_all_are_here_and_short() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {*SMALL, "board_dies"}
    assert all(len(path.read_text().splitlines()) < 130 for path in FOLDER.glob("*.py"))


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.jobs) for name in SMALL]
)
def test_it_runs_alone_and_learns(name: str) -> None:
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", alone(name))]
    assert len(losses) >= 8 and losses[-1] < losses[0]


@pytest.mark.jobs
@pytest.mark.parametrize("name", SMALL)
def test_a_death_does_not_change_how_it_ends(name: str, job: Job) -> None:
    job.faults = [Fault(rank=1, step=4)]
    job.run("--on-failure", "shrink", "-n", "3", script=script(name))
    assert job.status == 0, job.output
    last = alone(name).splitlines()[-1]
    assert job.output.count(last) == 2, f"{last}\n{job.output}"
    job.assert_clean()
