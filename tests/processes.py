"""Real processes for tests: started with a deadline, in production's own MPI, and found again when they are left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from meshmend.run.world.mpirun import ON_HOSTS, OPTIONS, mpirun

DEADLINE = 300.0
"""Seconds that nothing takes, however busy the machine is: what takes longer is broken."""


def run_mpi(ranks: int, command: Sequence[str], folder: Path, seconds: float = DEADLINE) -> str:
    """Run one program on so many ranks to its end; what it printed."""
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    options = [*root, *OPTIONS, *ON_HOSTS, "--mca", "btl_sm_backing_directory", str(folder)]
    job = subprocess.Popen(
        [mpirun(), *options, "-n", str(ranks), *command],
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )  # fmt: skip
    try:
        output, _ = job.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        output, _ = job.communicate()
        pytest.fail(f"the job hung:\n{output}")
    return output


def wait_for(what: Callable[[], bool], seconds: float = DEADLINE) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"it did not happen in {seconds:g} s"
        time.sleep(0.01)
