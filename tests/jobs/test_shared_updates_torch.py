"""PyTorch's sharded updates as whole jobs: whoever dies, the weights and buffers are those of the unsharded loop."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import meshmend as mm
from meshmend.base.status import HALTED
from tests.jobs.jobs import DEADLINE, Job

SCRIPT = Path(__file__).with_name("shared_updates_torch.py")


@cache
def alone(*options: str) -> str:
    """The weights of one worker."""
    command = [sys.executable, str(SCRIPT), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE)
    return done.stdout.split("weights ")[1].split()[0]


def assert_as_unsharded(job: Job, workers: int, *options: str) -> None:
    assert job.status == 0, job.output
    assert job.weights == [alone("plain=1", *options)] * workers, job.output
    job.assert_clean()


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("phase", "options"),
    [
        ("update", ["kind=adamw"]),
        ("give", ["kind=sgd"]),
        ("meet", ["kind=rmsprop"]),
        ("compare", ["kind=muon"]),
        ("allreduce", ["kind=adamw", "wrap=1"]),
        ("update", ["kind=sgd", "wrap=1"]),
    ],
)
def test_a_kill_changes_no_bit(job: Job, phase: str, options: list[str]) -> None:
    job.faults = [mm.testing.Fault(rank=1, step=5, point=phase)]
    job.run("-n", "3", "--on-failure", "shrink", script=[SCRIPT, *options])
    assert_as_unsharded(job, 2, *options)


@pytest.mark.jobs
@pytest.mark.parametrize("options", [["kind=lamb", "clip=3"], ["kind=adamw", "clip=0.5"]])
def test_norms_of_whole_tensors_have_the_same_bits_for_any_number_of_workers(job: Job, options: list[str]) -> None:
    job.faults = [mm.testing.Fault(rank=2, step=6, point="measure")]
    job.run("-n", "3", "--on-failure", "shrink", script=[SCRIPT, *options])
    assert job.status == 0, job.output
    assert job.weights == [alone(*options)] * 2, job.output
    job.assert_clean()


@pytest.mark.jobs
def test_a_replacement_takes_weights_buffers_and_schedule_from_one_and_slices_from_several(job: Job) -> None:
    job.faults = [mm.testing.Fault(rank=2, step=5, point="give")]
    job.run("-n", "3", script=[SCRIPT, "crowd=3", "steps=100000", "pause=0.01"])
    assert job.status == 0, job.output
    steps = job.output.split("weights ")[1].split(" after ")[1].split()[0]
    assert_as_unsharded(job, 3, f"steps={steps}")


@pytest.mark.jobs
def test_a_run_that_was_stopped_is_resumed_with_another_number_of_workers(job: Job) -> None:
    options = ["steps=60", "pause=0.05"]
    job.start("-n", "3", script=[SCRIPT, *options]).until("step 0 ")
    assert job.process is not None
    job.process.send_signal(signal.SIGINT)
    job.finish()
    assert job.status == HALTED, job.output
    saved = mm.load_checkpoint(job.path)
    assert saved.keys() == {"model", "optimizer", "steplr"} and "norm.running_mean" in saved["model"]
    job.start("--resume", job.name, "-n", "2", script=(), name=False).finish()
    assert "resuming from step-" in job.output
    assert_as_unsharded(job, 2, "steps=60")


@pytest.mark.jobs
def test_a_checkpoint_with_a_name_holds_state_dicts(job: Job) -> None:
    job.run("-n", "2", script=[SCRIPT, "best=4", "steps=8"])
    assert job.status == 0, job.output
    found = hashlib.sha256()
    for _, value in sorted(mm.load_checkpoint(job.path, "best")["model"].items()):
        found.update(value.numpy().tobytes())
    assert found.hexdigest() == alone("plain=1", "steps=5")
