"""The kill test: three real processes under mpirun, one really killed, and the other two must sum again.

It starts mpirun with the very options of a run, because each of them was needed once for survivors to survive.
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

from meshmend.errors import JobError
from meshmend.job.shm import HOME
from meshmend.run.world.mpirun import ON_HOSTS, OPTIONS, mpirun

SECONDS = 20
PROCESSES, VICTIM = 3, 1
_LEFT = [rank for rank in range(PROCESSES) if rank != VICTIM]


def kill_test(seconds: float = SECONDS) -> float:
    """Milliseconds from the kill to the next sum of the last survivor; a JobError says what went wrong instead."""
    memory = str(HOME) if os.access(HOME, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="meshmend-doctor-", dir=memory, ignore_cleanup_errors=True) as name:
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
                _end(job)
        if not all((folder / f"{rank}.json").exists() for rank in _LEFT):
            how = f"mpirun ended with status {job.returncode}" if ended else f"nothing came back in {seconds:g} s"
            raise JobError(f"{how}{_tail(out.read_text(errors='replace'))}")
        return _judge(folder)


def _line(folder: Path) -> list[str]:
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    memory = ["--mca", "btl_sm_backing_directory", str(folder)]
    program = [sys.executable, "-m", "meshmend.run.doctor.mpi", str(folder)]
    return [mpirun(), *root, *OPTIONS, *ON_HOSTS, *memory, "-n", str(PROCESSES), *program]


def _wait(job: subprocess.Popen[bytes], folder: Path, seconds: float) -> bool:
    """Until the survivors have written, mpirun has ended or the time is over; whether mpirun ended by itself."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and job.poll() is None:
        if all((folder / f"{rank}.json").exists() for rank in _LEFT):
            break
        time.sleep(0.01)
    return job.poll() is not None


def _end(job: subprocess.Popen[bytes]) -> None:
    """After failures mpirun may not end, though all its processes have; they end themselves by their own alarm."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        job.wait(1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()


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
