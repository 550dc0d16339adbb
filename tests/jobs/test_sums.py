"""Steps of several sums: whoever dies in whichever, the weights are those of one worker that nothing befell."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from meshmend import report
from meshmend.telemetry import Committed, read
from meshmend.testing import Fault
from tests.jobs.jobs import Job

SCRIPT = Path(__file__).with_name("two_sums.py")
GAN = Path(__file__).parents[2] / "examples" / "gan_torch.py"


def alone(*script: object) -> str:
    """The weights that one undisturbed worker ends with."""
    command = [sys.executable, *map(str, script)]
    return weights(subprocess.run(command, capture_output=True, text=True, check=True).stdout).pop()


def weights(output: str) -> set[str]:
    return set(re.findall(r"weights (\w+)", output))


def assert_right(job: Job, expected: str, steps: int, lanes: int) -> None:
    assert job.status == 0, job.output
    assert weights(job.output) == {expected}, job.output
    job.assert_clean()
    account = report.check(read(job.path))
    assert (account.steps, account.lanes) == (steps, 2 * steps * lanes)


@pytest.mark.parametrize("sum", [pytest.param(0, marks=pytest.mark.jobs), 1])
def test_a_death_in_each_sum(job: Job, sum: int) -> None:
    job.faults = [Fault(rank=1, step=2, point="allreduce", sum=sum)]
    job.run("-n", "2", "--on-failure", "shrink", script=(SCRIPT, 5, 1))
    assert_right(job, alone(SCRIPT, 5, 1), steps=5, lanes=12)
    lines = [event for event in read(job.path, "worker-0") if isinstance(event, Committed)]
    assert [len(line.more) for line in lines] == [1] * 5
    assert lines[2].more == [[[0, 12]]]


@pytest.mark.jobs
@pytest.mark.parametrize("policy", ["replace", "spare"])
def test_deaths_at_many_points(job: Job, policy: str) -> None:
    """Also of newcomers, which join between two steps, and of a courier alone."""
    spares = ("--spares", "1") if policy == "spare" else ()
    job.faults = [
        Fault(rank=1, step=3, point="compute", sum=1),
        Fault(rank=2, step=13, point="take", sum=0),
        Fault(rank=0, step=23, point="allreduce", sum=1),
        Fault(rank=1, step=33, point="commit"),
        Fault(rank=2, step=43, point="compute", kind="courier", sum=1),
        Fault(rank=1, step=53, point="add", sum=1),
    ]
    workers = 3
    if spares:
        workers, job.faults = 2, job.faults[:2]  # there is one spare, and nobody else is started
    job.run("-n", "3", *spares, "--on-failure", policy, script=(SCRIPT, 65, workers))
    assert_right(job, alone(SCRIPT, 65, 1), steps=65, lanes=12)
    assert all(one.what for one in report.incidents(read(job.path))), job.output


@pytest.mark.jobs
def test_the_launcher_and_all_couriers_die_within_the_second_sum(job: Job) -> None:
    job.run("-n", "3", script=(SCRIPT, 400, 3, 15))
    assert job.status == -signal.SIGKILL, job.output
    job.start("--attach", job.name, script=(), name=False).finish()
    assert_right(job, alone(SCRIPT, 400, 1), steps=400, lanes=12)


@pytest.mark.jobs
def test_a_gan_in_pytorch_whose_objects_change_between_its_sums(job: Job) -> None:
    job.faults = [
        Fault(rank=1, step=4, point="compute", sum=1),
        Fault(rank=0, step=12, point="allreduce", sum=1),
        Fault(rank=2, step=20, point="compute"),
    ]
    job.run("-n", "3", "--spares", "1", "--on-failure", "spare", script=(GAN, "--steps", 60))
    assert_right(job, alone(GAN, "--steps", 60), steps=60, lanes=4)


WRONG = """
import sys
import numpy as np
import meshmend as mm
with mm.Job(np.ones(64, np.float32), batch=16, lanes=4) as job:
    state = job.share(np.zeros(1, np.float32))
    for step in job.steps(6):
        state = state + job.sum(lambda lane: lane.sum())
        {wrong}
        job.commit(state)
"""


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("if job.rank == 1: job.sum(lambda lane: lane)", "must make the same number of sums in every step"),
        ("if step < 3 or job.rank == 1: job.sum(lambda lane: lane)", "must make the same number of sums in every step"),
        (
            "job.sum(lambda lane: lane[job.rank:])",
            "returned gradients with a different structure, shape or dtype than the other workers in sum 2",
        ),
    ],
)
@pytest.mark.jobs
def test_workers_that_make_different_sums_are_told(job: Job, wrong: str, said: str) -> None:
    path = job.folder / "wrong.py"
    path.write_text(WRONG.format(wrong=wrong))
    job.run("-n", "2", script=[path])
    assert job.status not in (0, None) and said in " ".join(job.output.split()), job.output
    assert "Traceback" not in job.output, job.output


LATE = """
import hashlib
import numpy as np
import meshmend as mm
data = np.random.default_rng(0).standard_normal((960, 8)).astype(np.float32)
with mm.Job(data, batch=96, lanes=12, reduction="exact") as job:
    state = job.share(np.zeros(8, np.float32))
    job.gather(job.rank)
    for step in job.steps(40):
        state = state + np.float32(1e-3) * job.sum(lambda lane: np.tanh(lane + state).sum(0))
        job.commit(state)
print(f"weights {hashlib.sha256(state.tobytes()).hexdigest()[:16]}", flush=True)
"""


@pytest.mark.jobs
@pytest.mark.parametrize("memory", ["off", "stand-in"])
def test_a_newcomer_speaks_while_the_others_sum(job: Job, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They bring what they have computed again in the next round, in device memory too."""
    monkeypatch.setenv("MESHMEND_DEVICE_MEMORY", memory)
    path = job.folder / "late.py"
    path.write_text(LATE)
    job.faults = [Fault(rank=1, step=4, point="compute"), Fault(rank=0, step=21, point="allreduce")]
    job.run("-n", "3", "--spares", "2", "--on-failure", "spare", script=[path])
    assert job.status == 0, job.output
    assert weights(job.output) == {alone(path)}, job.output
    job.assert_clean()
