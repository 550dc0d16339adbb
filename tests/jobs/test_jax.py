"""A JAX script: bit-identical weights under kills, and nothing compiled twice."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from meshmend.testing import Fault
from tests.jobs.jobs import Job

SCRIPT = Path(__file__).with_name("classifier.py")


def test_jax_trees_survive_a_death_without_compiling_again(job: Job) -> None:
    alone = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True, timeout=300)
    job.faults = [Fault(rank=1, step=6)]
    job.run("--on-failure", "shrink", "-n", "3", script=[SCRIPT])
    assert job.status == 0, job.output
    assert job.weights == re.findall(r"weights (\w+) after", alone.stdout) * 2, job.output
    assert re.findall(r"traces (\d+)", alone.stdout + job.output) == ["1", "1", "1"]
    job.assert_clean()
