"""A PyTorch script: bit-identical weights, moments and batch-norm statistics, whoever dies."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from meshmend.testing import Fault
from tests.jobs.jobs import Job, processes, wait_for

SCRIPT = Path(__file__).with_name("network.py")
SHRINK = ["--on-failure", "shrink"]


@cache
def alone(*options: str) -> str:
    quick = [option for option in options if not option.startswith("pause")]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *quick], capture_output=True, text=True, check=True, timeout=120
    )
    return re.findall(r"weights (\w+) after", done.stdout)[0]


@pytest.mark.parametrize("way", ["sum", "wrap"])
def test_a_death_changes_no_bit(job: Job, way: str) -> None:
    job.faults = [Fault(rank=1, step=6)]
    job.run(*SHRINK, "-n", "3", script=[SCRIPT, f"way={way}"])
    assert job.status == 0, job.output
    assert job.weights == [alone(f"way={way}")] * 2, job.output
    job.assert_clean()


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("words", "faults", "options", "survivors"),
    [
        (["-n", "2"], [], (), 2),
        ([*SHRINK, "-n", "3"], [Fault(rank=0, step=0), Fault(rank=2, step=9, point="allreduce")], (), 1),
        ([*SHRINK, "-n", "3"], [Fault(rank=1, step=6, point="commit", kind="flip")], (), 2),
        (["--on-failure", "spare", "-n", "2", "--spares", "1"], [Fault(rank=1, step=4)], (), 2),
        (["-n", "3"], [Fault(rank=1, step=3)], ("steps=200", "pause=0.06"), 3),
        ([*SHRINK, "-n", "3"], [Fault(rank=0, step=7), Fault(rank=2, step=15)], ("way=wrap",), 1),
        (["-n", "3"], [Fault(rank=1, step=3)], ("steps=200", "pause=0.06", "way=wrap"), 3),
        ([*SHRINK, "-n", "3"], [Fault(rank=1, step=5), Fault(rank=2, step=12)], ("way=ahead",), 1),
    ],
    ids=["two", "first and last", "flip", "spare", "newcomer", "last steps", "newcomer in a loop", "ahead"],
)
def test_whoever_dies(
    job: Job, words: list[str], faults: list[Fault], options: tuple[str, ...], survivors: int
) -> None:
    """A spare and a newcomer get an optimizer's state that their own has not yet."""
    job.faults = faults
    job.run(*words, script=[SCRIPT, *options])
    assert job.status == 0, job.output
    assert job.weights == [alone(*options)] * survivors, job.output
    wait_for(lambda: processes(job.name) == [])  # those that read ahead look for their parent every few seconds
    job.assert_clean()


@pytest.mark.jobs
@pytest.mark.parametrize("way", ["sum", "wrap"])
def test_a_checkpoint_holds_it_all(job: Job, way: str) -> None:
    """The loop finds its first epoch half done."""
    job.faults = [Fault(rank=rank, step=10) for rank in (0, 1)]
    job.run(*SHRINK, "--checkpoint-every", "3", "-n", "2", script=[SCRIPT, f"way={way}"])
    assert job.status != 0, job.output
    job.faults = []
    job.start("--resume", job.name, script=[], name=False).finish()
    assert job.status == 0, job.output
    assert job.weights == [alone(f"way={way}")] * 2, job.output
    job.assert_clean()
