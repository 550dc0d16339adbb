"""Real MPI processes for tests, with a deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

MPIRUN = [
    str(Path(sys.executable).parent / "mpirun"), "--with-ft", "ulfm", "--allow-run-as-root", "--oversubscribe",
    "--mca", "pml", "ob1", "--mca", "btl", "self,sm", "--mca", "coll", "^han,cuda", "--mca", "mpi_yield_when_idle", "1",
]  # fmt: skip


def run_mpi(ranks: int, command: Sequence[str], folder: Path, seconds: float = 60) -> str:
    """Run one program on so many ranks to its end; what it printed."""
    job = subprocess.Popen(
        [*MPIRUN, "--mca", "btl_sm_backing_directory", str(folder), "-n", str(ranks), *command],
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
