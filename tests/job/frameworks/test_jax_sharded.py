"""Workers of several devices: sums, digests and states are those of the same bits on one device.

The devices are forced on the processor, so what is here runs in a process of its own (`jax_sharded_member.py`).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(*words: str, devices: int = 4, timeout: float = 280, **more: str) -> str:
    env = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        **more,
    }
    command = [sys.executable, "-m", "tests.job.frameworks.jax_sharded_member", *words]
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize(
    "checks",
    ["states digests 2 sums 1 job 1", pytest.param("shares digests 20 sums 3 job 2", marks=pytest.mark.jobs)],
)
def test_the_same_as_on_one_device(checks: str) -> None:
    words = checks.split()
    found = [line for line in run(*words).splitlines() if line.endswith(" as expected")]
    assert found == [f"{word} as expected" for word in words if not word.isdigit()]


@pytest.mark.jobs
def test_an_array_over_several_processes_is_refused() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ThreadPoolExecutor() as pool:
        ran = [pool.submit(run, "processes", str(port), devices=2, MEMBER=str(member)) for member in range(2)]
        assert all("processes as expected" in one.result() for one in ran)
