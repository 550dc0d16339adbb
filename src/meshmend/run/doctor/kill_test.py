"""The kill test: three processes sum under mpirun, one is killed, and the other two must sum again.

It starts mpirun with the options of a run, because survivors die without any one of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from meshmend.base.clocks import KILL_TEST, KILL_TEST_EXIT, KILL_TEST_POLL
from meshmend.base.processes import kill, running
from meshmend.base.units import duration_text
from meshmend.errors import JobError
from meshmend.job.shm import MEMORY
from meshmend.run.world.mpirun import ON_HOSTS, OPTIONS, mpirun

PROCESSES, VICTIM = 3, 1
MEMBER = "meshmend.run.doctor.kill_test_mpi"
_LEFT = [rank for rank in range(PROCESSES) if rank != VICTIM]


def kill_test(seconds: float = KILL_TEST) -> float:
    """Return the milliseconds from the kill to the last survivor's next sum; a JobError says what failed."""
    memory = str(MEMORY) if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(
        prefix=f"meshmend-doctor-{os.getpid()}-", dir=memory, ignore_cleanup_errors=True
    ) as name:
        folder = Path(name)
        out = folder / "out"
        with out.open("w") as stream:
            job = subprocess.Popen(
                _line(folder), stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": name}, start_new_session=True,
            )  # fmt: skip
            try:
                ended = _wait(job, folder, seconds)
            finally:
                _end(job, folder)
        if not all((folder / f"{rank}.json").exists() for rank in _LEFT):
            how = (
                f"mpirun exited with status {job.returncode}" if ended else f"no result within {duration_text(seconds)}"
            )
            raise JobError(f"{how}{_tail(out.read_text(errors='replace'))}")
        return _judge(folder)


def _line(folder: Path) -> list[str]:
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    memory = ["--mca", "btl_sm_backing_directory", str(folder)]
    program = [sys.executable, "-P", "-m", MEMBER, str(folder)]
    return [mpirun(), *root, *OPTIONS, *ON_HOSTS, *memory, "-n", str(PROCESSES), *program]


def _wait(job: subprocess.Popen[bytes], folder: Path, seconds: float) -> bool:
    """Wait for the survivors' results, mpirun's exit or the deadline; return True if mpirun exited by itself."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and job.poll() is None:
        if all((folder / f"{rank}.json").exists() for rank in _LEFT):
            break
        time.sleep(KILL_TEST_POLL)
    return job.poll() is not None


def _end(job: subprocess.Popen[bytes], folder: Path) -> None:
    """Kill mpirun, which may not exit after failures, and its processes, which are in separate process groups."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        job.wait(KILL_TEST_EXIT)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    for process in running(MEMBER, str(folder)):
        kill(process)


def _judge(folder: Path) -> float:
    seen = [json.loads((folder / f"{rank}.json").read_text()) for rank in _LEFT]
    expected = {"saw": sum(1 << rank for rank in _LEFT), "agreed": 1, "size": len(_LEFT)}
    for rank, one in zip(_LEFT, seen, strict=True):
        for what, right in expected.items():
            if one[what] != right:
                raise JobError(f"after the repair, process {rank} has {what} = {one[what]}, expected {right}")
    return float(max(one["at"] for one in seen) - int((folder / "killed").read_text())) / 1e6


def _tail(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip(" -\t")]
    return ": " + " / ".join(lines[-3:])[-300:] if lines else ""
