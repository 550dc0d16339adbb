"""The state that a run ends with: saved whoever dies, resumed from, and read by others."""

from __future__ import annotations

import pytest

import meshmend as mm
from meshmend.job.state.safetensors import latest
from meshmend.telemetry import Saved, read
from tests.jobs.jobs import SCRIPT, Job
from tests.jobs.test_run import Undisturbed


@pytest.mark.jobs
def test_a_finished_run_keeps_its_last_state_and_continues_from_it(job: Job, undisturbed: Undisturbed) -> None:
    job.run("-n", "2", script=[SCRIPT, "steps=10"])
    last = latest(job.path / "checkpoints")
    assert job.status == 0 and last is not None and last.name == "step-00000010.safetensors", job.output
    assert mm.load_checkpoint(job.path)["step"] == 10
    before = job.output
    job.start("--resume", job.name, script=[SCRIPT, "steps=20"], name=False).finish()
    assert job.status == 0 and "step 9 " not in job.output.removeprefix(before)
    assert job.weights[-1] == undisturbed("steps=20")
    job.assert_clean()


HALFWAY = """
import os, signal
import numpy as np
from meshmend.job.state import safetensors
import meshmend as mm
written = safetensors._start
def dies(*args):
    if not os.path.exists("died"):
        open("died", "w")
        os.kill(os.getpid(), signal.SIGKILL)
    return written(*args)
safetensors._start = dies
with mm.Job(np.ones((64, 1), np.float32), batch=8, lanes=4) as job:
    state = job.share(np.zeros(1, np.float32))
    for step in job.steps(5):
        state = state + job.sum(lambda lane: lane.sum(0))
        job.commit(state)
"""


def test_who_dies_while_it_writes_the_last_state_is_followed_by_the_next(job: Job) -> None:
    path = job.folder / "made.py"
    path.write_text(HALFWAY)
    job.run("-n", "3", "--on-failure", "shrink", script=[path])
    assert job.status == 0 and (job.folder / "died").exists(), job.output
    assert mm.load_checkpoint(job.path) == 40
    assert [event.step for event in read(job.path) if isinstance(event, Saved)] == [5]
    job.assert_clean()


def test_an_exception_in_all_workers_leaves_the_last_state_and_says_how_to_go_on(
    job: Job, undisturbed: Undisturbed
) -> None:
    job.run("-n", "2", script=[SCRIPT, "wrong=5"])
    assert job.status == 1 and f"meshmend run --resume {job.name}" in job.output, job.output
    assert mm.load_checkpoint(job.path)["step"] == 5
    job.start("--resume", job.name, script=[SCRIPT, "steps=20"], name=False).finish()
    assert job.status == 0 and job.weights[-1] == undisturbed("steps=20"), job.output
    job.assert_clean()


WITHIN = """
import numpy as np
import meshmend as mm
with mm.Job(np.ones((64, 1), np.float32), batch=8, lanes=4) as job:
    state = job.share(np.zeros(1, np.float32))
    for step in job.steps(5):
        state = state + job.sum(lambda lane: lane.sum(0))
        job.commit(state)
    with mm.Job(np.ones((64, 1), np.float32), batch=8, lanes=4) as inner:
        inner.share(np.zeros(1, np.float32))
"""


@pytest.mark.jobs
def test_a_job_within_another_ends_the_run_with_the_outer_ones_state(job: Job) -> None:
    path = job.folder / "made.py"
    path.write_text(WITHIN)
    job.run("-n", "2", script=[path])
    assert job.status == 2 and job.output.count("one job at a time") == 1, job.output
    assert mm.load_checkpoint(job.path) == 40
    job.assert_clean()
