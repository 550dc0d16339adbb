"""`meshmend run --warm 1`: a process that has waited becomes the replacement, with the bits of an undisturbed run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from meshmend.job.shm.inspect import members
from meshmend.telemetry import Started, read
from tests.jobs.jobs import SCRIPT, Job, processes, wait_for
from tests.jobs.test_run import Undisturbed


def warm_of(job: Job) -> list[int]:
    """The processes that wait in this run: children of its launcher."""
    assert job.process is not None
    found = processes("meshmend.job.warm")
    return [one for one in found if f"PPid:\t{job.process.pid}\n" in Path(f"/proc/{one}/status").read_text()]


def test_a_process_that_has_waited_replaces_a_dead_worker(job: Job, undisturbed: Undisturbed) -> None:
    job.start("-n", "2", "--warm", "1", script=[SCRIPT, "gate=5", "steps=1000000", "pause=0.01", "crowd=2"])
    wait_for(lambda: bool(warm_of(job)))
    [waited] = warm_of(job)
    os.kill(next(one.worker for one in members(job.name) if one.rank == 1), signal.SIGKILL)
    job.open_gate()
    job.finish()
    steps = job.output.split(" after ")[1].split()[0]
    assert job.weights == [undisturbed(f"steps={steps}")] * 2, job.output
    assert [one.process for one in read(job.path) if isinstance(one, Started)][2:] == [waited], job.output
    job.assert_clean()
