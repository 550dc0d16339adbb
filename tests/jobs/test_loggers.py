"""What the first worker logs is all there, in its order and once, when it dies and another one is first."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshmend.testing import Fault
from tests.jobs.jobs import Job

SCRIPT = Path(__file__).with_name("logged.py")
STEPS = 24


ENDS = [str(step) for step in range(4, STEPS + 1, 4)]


def ends(job: Job) -> list[str]:
    """After which steps the callback was called."""
    return (job.folder / "ends").read_text().split()


def assert_logged(job: Job) -> None:
    """Every step with its weight, once."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(job.folder / "board"), size_guidance={"scalars": 0}).Reload()
    found = [(event.step, event.value) for event in board.Scalars("weight")]
    assert found == [(step, 16.0 * (step + 1)) for step in range(STEPS)], job.output


@pytest.mark.jobs
def test_a_board_and_a_callback_go_on_with_the_next_worker(job: Job) -> None:
    job.faults = [Fault(rank=0, step=9), Fault(rank=1, step=17)]
    job.run("--on-failure", "shrink", "-n", "3", script=[SCRIPT])
    assert job.status == 0, job.output
    assert len([*(job.folder / "board").iterdir()]) == 3
    assert_logged(job)
    assert ends(job) == ENDS
    job.assert_clean()


@pytest.mark.jobs
def test_a_resumed_run_logs_again_what_it_does_again(job: Job) -> None:
    """TensorBoard drops what was logged of steps that were lost; a callback is called again for an epoch that was."""
    job.faults = [Fault(rank=rank, step=11) for rank in (0, 1)]
    job.run("--on-failure", "shrink", "--checkpoint-every", "3", "-n", "2", script=[SCRIPT])
    assert job.status != 0, job.output
    job.faults = []
    job.start("--resume", job.name, script=[], name=False).finish()
    assert job.status == 0, job.output
    assert_logged(job)
    assert sorted(set(ends(job)), key=int) == ENDS
    job.assert_clean()
