"""LARS and LAMB through kills: weights and optimiser states have the bits of an undisturbed run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from meshmend.testing import Fault
from tests.jobs.jobs import Job

SCRIPT = Path(__file__).with_name("twins.py")
SHRINK = ["--on-failure", "shrink", "-n", "3"]
SPARE = ["--on-failure", "spare", "-n", "2", "--spares", "1"]


def alone(network: str) -> str:
    """The bits of a run that nothing disturbs."""
    command = [sys.executable, str(SCRIPT), f"network={network}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    return re.findall(r"weights (\w+) after", done.stdout)[0]


@pytest.mark.jobs
@pytest.mark.parametrize("network", ["resnet", "bert"])
@pytest.mark.parametrize(
    ("words", "fault"),
    [(SHRINK, Fault(rank=1, step=3)), (SPARE, Fault(rank=0, step=4, point="allreduce"))],
    ids=["shrink", "spare"],
)
def test_lars_and_lamb_survive_a_kill(job: Job, network: str, words: list[str], fault: Fault) -> None:
    expected = alone(network)
    job.faults = [fault]
    job.run(*words, script=[SCRIPT, f"network={network}"])
    assert job.status == 0, job.output
    assert job.weights == [expected] * 2, job.output
    job.assert_clean()
