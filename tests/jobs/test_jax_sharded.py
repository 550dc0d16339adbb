"""Workers of several devices each, killed for real: the same bits, and every state with its sharding."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from meshmend.run.console import sentence
from meshmend.run.supervisor.messages import Halting, TooFew
from meshmend.testing import Fault
from tests.jobs.jobs import Job

SCRIPT = Path(__file__).with_name("sharded.py")
SPARE = ["--on-failure", "spare", "-n", "2", "--spares", "1"]
SHRINK = ["--on-failure", "shrink", "-n", "3"]


@pytest.fixture(scope="module")
def expected() -> str:
    """The weights of one worker with one device."""
    command = [sys.executable, str(SCRIPT), "devices=1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    return re.findall(r"weights (\w+) after", done.stdout)[0]


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("words", "fault", "options"),
    [
        (SPARE, Fault(rank=1, step=4), ()),
        (SPARE, Fault(rank=0, step=4, point="allreduce"), ("other=2",)),
        (SHRINK, Fault(rank=1, step=4, point="commit", kind="flip"), ("other=2",)),
    ],
    ids=["a spare", "a spare that shards in another way", "a flipped bit"],
)
def test_a_death_changes_no_bit_and_no_sharding(
    job: Job, expected: str, words: list[str], fault: Fault, options: tuple[str, ...]
) -> None:
    job.faults = [fault]
    job.run(*words, script=[SCRIPT, *options])
    assert job.status == 0, job.output
    assert job.weights == [expected] * 2, job.output
    assert len(re.findall("sharding kept", job.output)) == 2 and "sharding lost" not in job.output
    job.assert_clean()


@pytest.mark.jobs
def test_a_run_is_resumed_with_another_sharding(job: Job, expected: str) -> None:
    job.faults = [Fault(rank=1, step=6)]
    job.start("--on-failure", "shrink", "--min-workers", "2", "-n", "2", script=[SCRIPT, "gate=9"])
    job.until(sentence(Halting(TooFew(1, 2), checkpoint=True))).open_gate()
    job.finish()
    assert job.status == 75, job.output
    job.faults = []
    job.start("--resume", job.name, "-n", "2", script=[SCRIPT, "devices=2"], name=False).finish()
    assert job.status == 0, job.output
    assert job.weights == [expected] * 2, job.output
    assert len(re.findall("2 devices, sharding kept", job.output)) == 2, job.output
    job.assert_clean()
