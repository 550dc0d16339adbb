"""A JAX script: bit-identical weights under kills, and nothing compiled twice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.test_run import finish, leftovers, start, weights

pytest.importorskip("jax")
pytestmark = pytest.mark.jobs
SCRIPT = Path(__file__).with_name("classifier.py")


def test_jax_trees_survive_a_death_without_compiling_again() -> None:
    alone = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True, timeout=120)
    name = f"test-jax-{os.getpid()}"
    job = start("--on-failure", "shrink", "--name", name, "-n", "3", str(SCRIPT), "kill=1:6")
    output = finish(job)
    assert job.returncode == 0, output
    assert weights(output) == weights(alone.stdout) * 2, output
    assert re.findall(r"traces (\d+)", alone.stdout + output) == ["1", "1", "1"]
    assert leftovers(name) == []
