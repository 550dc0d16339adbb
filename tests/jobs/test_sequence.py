"""One job after another in one run: whoever dies in the first, between the two, or in the second."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import meshmend as mm
from meshmend import report
from meshmend.base.status import HALTED
from meshmend.telemetry import Began, Events, read
from tests.jobs.jobs import Job
from tests.processes import wait_for

SCRIPT = Path(__file__).with_name("sequence.py")
EPOCHS = Path(__file__).with_name("epochs.py")
SWEEP = Path(__file__).with_name("sweep.py")


@pytest.fixture(scope="module")
def alone() -> str:
    """The weights of both jobs with plain python."""
    done = subprocess.run(
        [sys.executable, SCRIPT], stdout=subprocess.PIPE, text=True, check=True, timeout=120
    )  # fmt: skip
    return str(re.findall(r"weights (\w+) after", done.stdout)[-1])


def assert_done(job: Job, weights: str, *, steps: tuple[int, int] = (8, 9)) -> None:
    assert job.status == 0, job.output
    assert set(job.weights) == {weights}, job.output
    found = {number: report.check(events) for number, events in report.jobs(Events(job.path)).items()}
    assert {number: (account.steps, account.findings) for number, account in found.items()} == {
        1: (steps[0], []), 2: (steps[1], []),
    }  # fmt: skip
    assert mm.load_checkpoint(job.path).tobytes().hex() == weights
    assert mm.load_checkpoint(job.path, job=1).shape == (5,)
    job.assert_clean()


def test_two_jobs_and_a_death_in_each_and_between_give_the_bits_of_an_undisturbed_run(job: Job, alone: str) -> None:
    job.run("-n", "3", script=[SCRIPT, "one=1@4", "between=2", "two=0@4"])
    assert all((job.folder / mark).exists() for mark in ("one", "between", "two")), job.output
    assert_done(job, alone)


@pytest.mark.jobs
@pytest.mark.parametrize("where", ["one", "between", "two"])
def test_a_run_that_is_halted_in_or_between_two_jobs_is_resumed(job: Job, alone: str, where: str) -> None:
    job.start("-n", "2", script=[SCRIPT, f"gate={where}"]).until(f"waits {where}")
    assert job.process is not None
    job.process.send_signal(signal.SIGTERM)
    job.until("received SIGTERM").open_gate()  # between two jobs, they look when they open the next one
    assert job.finish().status == HALTED, job.output
    job.start("--resume", job.name, script=[SCRIPT, f"gate={where}"], name=False).finish()
    assert_done(job, alone)


@pytest.mark.jobs
@pytest.mark.parametrize("where", ["between", "two"])
def test_a_launcher_that_is_killed_in_or_between_two_jobs_is_replaced(job: Job, alone: str, where: str) -> None:
    job.start("-n", "2", script=[SCRIPT, f"gate={where}"]).until(f"waits {where}")
    assert job.process is not None
    job.process.kill()
    job.finish()
    job.start("--attach", job.name, script=[], name=False)
    wait_for(lambda: any(isinstance(one, Began) and one.attached for one in read(job.path, "launcher")))
    job.open_gate()
    job.finish()
    assert_done(job, alone)


@pytest.mark.jobs
def test_the_evaluation_that_a_halt_came_before_is_done_when_the_run_is_resumed(job: Job) -> None:
    job.start("-n", "2", script=[EPOCHS, "wait"]).until("waits")
    assert job.process is not None
    job.process.send_signal(signal.SIGTERM)
    job.until("received SIGTERM").open_gate()
    assert job.finish().status == HALTED and "evaluated" not in job.output, job.output
    job.start("--resume", job.name, script=[EPOCHS], name=False).finish()
    evaluated = {"epoch 0 evaluated at 2 on 32", "epoch 1 evaluated at 4 on 32"}
    assert job.status == 0 and set(re.findall(r"epoch .*", job.output)) == evaluated, job.output


@pytest.mark.jobs
def test_a_spare_that_was_not_needed_in_the_first_job_is_there_in_the_second(job: Job, alone: str) -> None:
    job.run("-n", "2", "--spares", "1", "--on-failure", "spare", script=[SCRIPT, "two=0@4"])
    assert_done(job, alone)


def test_a_loop_that_catches_a_sum_that_is_not_finite_goes_on_with_the_next_job(job: Job) -> None:
    """All raise it together. Who comes later passes through those jobs, and raises it again there."""
    job.run("-n", "2", script=[SWEEP, "kill"])
    assert job.status == 0 and (job.folder / "died").exists(), job.output
    (found,) = set(re.findall(r"found (\[.*\])", job.output))
    first, good, third, best = ast.literal_eval(found)
    assert first == third < 0 < good < best
    accounts = {number: report.check(events) for number, events in report.jobs(Events(job.path)).items()}
    assert [(one.steps, one.findings) for one in accounts.values()] == [(-first, []), (6, []), (-first, []), (6, [])]
    job.assert_clean()


@pytest.mark.jobs
def test_a_numpy_job_and_then_one_of_pytorch(job: Job) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "torch"], stdout=subprocess.PIPE, text=True, check=True, timeout=120
    )  # fmt: skip
    job.run("-n", "3", script=[SCRIPT, "torch", "one=0@3", "two=1@3"])
    assert job.status == 0, job.output
    assert set(job.weights) == set(re.findall(r"weights (\w+) after", done.stdout))
    job.assert_clean()
