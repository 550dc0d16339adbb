"""What lies in shared memory: whose it is, and what is cleaned up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from meshmend.base.clocks import LEFTOVER
from meshmend.base.processes import born
from meshmend.job.reduction.base import WireFormat
from meshmend.job.reduction.float32 import Float32
from meshmend.job.shm import AgentSegment, create_as_agent, open_as_worker
from meshmend.job.shm.buffers import make_buffers
from meshmend.job.shm.cleanup import clean_stale, ranks_of, remove_run


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def made(run: str, rank: int, owner: int, worker: int = 0) -> AgentSegment:
    found = create_as_agent(run, rank)
    found.agent.owner, found.agent.worker, found.agent.worker_born = owner, worker, born(worker)
    return found


def test_only_dead_runs_are_cleaned_up(home: Path) -> None:
    made("dead", 0, dead_process())
    made("live", 0, os.getpid())
    made("orphaned", 0, dead_process(), os.getpid())
    for run in ("dead", "live", "orphaned", "left", "new"):
        (home / f"meshmend-{run}-mpi").mkdir()
    os.utime(home / "meshmend-left-mpi", (0, time.time() - 2 * LEFTOVER))
    assert clean_stale() == ["dead", "left"]
    runs = {path.name.split("-")[1] for path in home.iterdir()}
    assert runs == {"live", "orphaned", "new"}


def test_a_run_is_not_taken_for_another_whose_name_begins_alike(home: Path) -> None:
    for run in ("a", "a-1", "a-b"):
        made(run, 0, os.getpid())
        (home / f"meshmend-{run}-mpi").mkdir()
    assert ranks_of("a") == [0]
    assert remove_run("a")
    assert not remove_run("a")
    assert (ranks_of("a"), ranks_of("a-1"), ranks_of("a-b")) == ([], [0], [0])
    assert {path.name for path in home.glob("*-mpi")} == {"meshmend-a-1-mpi", "meshmend-a-b-mpi"}


def test_memory_is_for_its_user_alone(home: Path) -> None:
    made("mine", 0, os.getpid())
    worker = open_as_worker("mine", 0)
    make_buffers(worker.files, worker.worker, WireFormat(Float32, 8), 0)
    worker.files.write_state([b"state"])
    worker.files.put_given([b"given"])
    worker.files.write_error(0, "", "", mistake=False)
    assert len(list(home.iterdir())) == 7
    assert {path.stat().st_mode & 0o777 for path in home.iterdir()} == {0o600}
