"""States that stay on their device, in whole jobs: the same bits as on the host, whoever dies or joins."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from meshmend.testing import Fault
from tests.jobs.jobs import Job

HERE = Path(__file__).parent
SHRINK = ["--on-failure", "shrink", "-n", "3"]
SPARE = ["--on-failure", "spare", "-n", "2", "--spares", "1"]


def alone(script: Path, *options: str) -> str:
    """The weights of one worker that keeps everything on its host."""
    done = subprocess.run([sys.executable, str(script), *options], capture_output=True, text=True, timeout=300)
    return re.findall(r"weights (\w+) after", done.stdout)[0]


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("name", "options", "words", "fault"),
    [
        ("classifier.py", (), SHRINK, Fault(rank=1, step=6)),
        ("network.py", ("way=sum",), SHRINK, Fault(rank=1, step=6, point="allreduce")),
        ("network.py", ("way=wrap",), SPARE, Fault(rank=1, step=4)),
        ("network.py", ("way=sum",), SHRINK, Fault(rank=1, step=6, point="commit", kind="flip")),
    ],
    ids=["JAX", "PyTorch", "a spare", "a flipped bit"],
)
def test_devices_give_the_bits_of_the_host(
    job: Job, name: str, options: tuple[str, ...], words: list[str], fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = alone(HERE / name, *options)
    monkeypatch.setenv("MESHMEND_STATE", "device")
    job.faults = [fault]
    job.run(*words, script=[HERE / name, *options])
    assert job.status == 0, job.output
    assert job.weights == [expected] * 2, job.output
    job.assert_clean()
