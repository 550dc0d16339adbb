"""Embedding tables as whole jobs: workers killed in every phase, replaced, stopped and resumed.

Whoever dies, the rows, the state and what evaluations give are those of one worker alone, bit for bit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import meshmend as mm
from meshmend import report
from meshmend.base.status import HALTED
from meshmend.job.shm.inspect import members
from meshmend.telemetry import read
from tests.jobs.jobs import DEADLINE, Job

SCRIPT = Path(__file__).with_name("embeddings.py")
TORCH = Path(__file__).with_name("embeddings_torch.py")


@cache
def alone(*options: str, script: Path = SCRIPT) -> tuple[str, tuple[str, ...]]:
    """The weights, and the scores of each evaluation, of one worker."""
    command = [sys.executable, str(script), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE)
    return done.stdout.split("weights ")[1].split()[0], scores(done.stdout)


def scores(output: str) -> tuple[str, ...]:
    return tuple(sorted({line.split("scores ")[1] for line in output.splitlines() if "scores " in line}))


def assert_as_alone(job: Job, workers: int, *options: str, script: Path = SCRIPT) -> None:
    assert job.status == 0, job.output
    weights, found = alone(*options, script=script)
    assert job.weights == [weights] * workers, job.output
    assert scores(job.output) == found, job.output
    job.assert_clean()


def test_a_kill_changes_no_bit_of_the_tables(job: Job) -> None:
    """Rows of the dead one are read from buddies, which made the same updates, and nobody holds everything."""
    job.faults = [mm.testing.Fault(rank=1, step=5, point="compute")]
    job.run("-n", "4", "--on-failure", "shrink", script=[SCRIPT, "steps=10", "share=0.8"])
    assert_as_alone(job, 3, "steps=10")
    assert mm.load_checkpoint(job.path)["w"].shape == (3, 4), "the state without the tables"
    (account,) = [report.check(events) for events in report.jobs(read(job.path)).values()]
    assert account.slices[0] > 0 and account.single > 0, "the audit says for how long rows had one copy alone"
    assert "Slices with one copy alone: for" in report.render(account, [])


@pytest.mark.jobs
@pytest.mark.parametrize("phase", ["compute", "commit"])
def test_tables_beside_a_model_of_pytorch_keep_their_bits(job: Job, phase: str) -> None:
    job.faults = [mm.testing.Fault(rank=1, step=5, point=phase)]
    job.run("-n", "3", "--on-failure", "shrink", script=[TORCH])
    assert_as_alone(job, 2, script=TORCH)


@pytest.mark.jobs
@pytest.mark.parametrize("phase", ["compute", "allreduce", "add", "take", "commit"])
def test_a_kill_in_every_phase_changes_no_bit(job: Job, phase: str) -> None:
    job.faults = [mm.testing.Fault(rank=1, step=5, point=phase)]
    job.run("-n", "4", "--on-failure", "shrink", script=[SCRIPT, "grow=1"])
    assert_as_alone(job, 3, "grow=1")


@pytest.mark.jobs
@pytest.mark.parametrize(("phase", "kind"), [("compute", "kill"), ("allreduce", "courier"), ("commit", "flip")])
def test_a_replacement_takes_its_rows_from_several(job: Job, phase: str, kind: str) -> None:
    job.faults = [mm.testing.Fault(rank=2, step=5, point=phase, kind=kind)]
    job.run("-n", "4", script=[SCRIPT, "crowd=4", "steps=100000", "pause=0.005"])
    assert job.status == 0, job.output
    steps = job.output.split("weights ")[1].split(" after ")[1].split()[0]
    assert_as_alone(job, 4, f"steps={steps}")


@pytest.mark.jobs
def test_two_die_one_after_the_other_and_a_spare_holds_rows(job: Job) -> None:
    job.faults = [
        mm.testing.Fault(rank=1, step=4, point="allreduce"),
        mm.testing.Fault(rank=0, step=14, point="compute"),
    ]
    job.run("-n", "3", "--spares", "1", "--on-failure", "spare", script=[SCRIPT, "pause=0.05"])
    assert_as_alone(job, 2)


@pytest.mark.jobs
def test_two_die_at_once_with_two_buddies(job: Job) -> None:
    job.faults = [mm.testing.Fault(rank=rank, step=6, point="compute") for rank in (0, 2)]
    job.run("-n", "4", "--on-failure", "shrink", script=[SCRIPT, "buddies=2", "optimizer=sgd"])
    assert_as_alone(job, 2, "optimizer=sgd")


@pytest.mark.jobs
def test_a_step_that_is_skipped_leaves_the_tables_as_they_are(job: Job) -> None:
    options = ["bad=7", "nonfinite=skip"]
    job.faults = [mm.testing.Fault(rank=2, step=8, point="compute")]
    job.run("-n", "3", "--on-failure", "shrink", script=[SCRIPT, *options])
    assert_as_alone(job, 2, *options)


@pytest.mark.jobs
def test_a_sample_that_cannot_be_read_is_skipped_by_all_alike(job: Job) -> None:
    """Whoever meets it, also for the lanes of a dead worker, takes the same one in its place."""
    options = ["damaged=17", "steps=40"]  # two epochs
    job.faults = [mm.testing.Fault(rank=rank, step=step) for rank, step in ((1, 3), (0, 22))]
    job.run("-n", "4", "--on-failure", "shrink", script=[SCRIPT, "buddies=2", *options])
    assert "sample 17 cannot be read (it is damaged)" in job.output
    assert_as_alone(job, 2, *options)
    assert alone(*options) != alone("steps=40"), "it has another one in its place"


@pytest.mark.jobs
def test_mpirun_dies_and_the_workers_live_on_with_their_rows(job: Job) -> None:
    job.start("-n", "3", script=[SCRIPT, "gate=6"]).until("step 0 ")
    (victim,) = {member.daemon for member in members(job.name)}
    os.kill(victim, signal.SIGKILL)
    job.open_gate()
    job.finish()
    assert_as_alone(job, 3)


@pytest.mark.jobs
def test_rows_whose_holders_are_all_dead_are_told_in_one_sentence(job: Job) -> None:
    job.faults = [mm.testing.Fault(rank=rank, step=5, point="compute") for rank in (1, 2, 3)]
    job.run("-n", "4", "--on-failure", "shrink", script=[SCRIPT])
    assert job.status == 1, job.output
    said = [line for line in job.output.splitlines() if "all workers that held slice" in line]
    assert len(said) == 1 and "last checkpoint" in said[0] and "Traceback" not in job.output, job.output


@pytest.mark.jobs
@pytest.mark.parametrize("workers", [2, 4])
def test_a_run_that_was_stopped_is_resumed_with_any_number_of_workers(job: Job, workers: int) -> None:
    options = ["steps=60", "pause=0.05"]
    job.start("-n", "3", script=[SCRIPT, *options]).until("step 0 ")
    assert job.process is not None
    job.process.send_signal(signal.SIGINT)
    job.finish()
    assert job.status == HALTED and not job.weights, job.output
    job.start("--resume", job.name, "-n", str(workers), script=(), name=False).finish()
    assert "resuming from step-" in job.output and "the beginning" not in job.output, job.output
    assert job.status == 0, job.output
    assert job.weights == [alone("steps=60")[0]] * workers, job.output
    job.assert_clean()


@pytest.mark.jobs
def test_after_everybody_was_killed_the_last_checkpoint_is_resumed(job: Job) -> None:
    job.faults = [mm.testing.Fault(rank=rank, step=17, point="compute") for rank in range(3)]
    job.run("-n", "3", "--checkpoint-every", "5", script=[SCRIPT])
    assert job.status == 1, job.output
    job.faults = []
    job.start("--resume", job.name, "-n", "2", script=(), name=False).finish()
    assert "resuming from step-000000" in job.output and "the beginning" not in job.output, job.output
    assert job.weights == [alone()[0]] * 2, job.output
    job.assert_clean()
    left = sorted(path.name for path in (job.path / "checkpoints").iterdir())
    assert len([name for name in left if name.startswith("step-")]) == 2, left
    assert len([name for name in left if name.startswith("slices-")]) == 2, left


@pytest.mark.jobs
def test_random_failures_change_no_bit(job: Job) -> None:
    """With one buddy: chaos waits until its rows have two copies again."""
    options = ["steps=300", "pause=0.02"]
    job.start("-n", "4", "--log-every", "0", script=[SCRIPT, *options]).until("step 20 ")
    words = ["--every", "0.5", "--count", "8", "--kinds", "kill,courier,mpirun,flip", "--seed", "3", job.name]
    command = [sys.executable, "-m", "meshmend", "chaos", *words]
    ran = subprocess.run(command, cwd=job.folder, capture_output=True, text=True, timeout=DEADLINE)
    assert ran.returncode == 0, ran.stderr
    job.finish()
    assert job.status == 0, job.output
    assert set(job.weights) == {alone("steps=300")[0]}, job.output
    job.assert_clean()
