"""The epoch number that a worker sees with each total: (attempt, world, shrink)."""

from __future__ import annotations

import os
import re
import signal

from meshmend.job.shm.inspect import members
from meshmend.testing import Fault
from tests.jobs.jobs import Job

SCRIPT = """
import time
import numpy as np, meshmend as mm

with mm.Job(np.arange(64.0), batch=8, lanes=4) as job:
    print("before", tuple(job.training.session.epoch), flush=True)
    state = job.share(np.zeros(4))
    for step in job.steps({steps}):
        time.sleep({pause})
        total = job.sum(lambda lane: lane.sum() + state * 0)
        print("epoch", step, tuple(job.training.session.epoch), flush=True)
        job.commit(state + total)
"""


def epochs(job: Job) -> dict[int, set[str]]:
    """What all workers said, by step."""
    found: dict[int, set[str]] = {}
    for step, epoch in re.findall(r"epoch (\d+) \((.*?)\)", job.output):
        found.setdefault(int(step), set()).add(epoch)
    return found


def test_all_members_count_a_death_in_the_same_step(job: Job) -> None:
    script = job.folder / "script.py"
    script.write_text(SCRIPT.format(steps=8, pause=0))
    job.faults = [Fault(rank=1, step=3, point="allreduce")]
    job.run("-n", "3", "--on-failure", "shrink", script=[script])
    assert job.status == 0, job.output
    assert job.output.count("before (0, 0, 0)") == 3
    found = epochs(job)
    assert [found[step] for step in range(8)] == [{"0, 1, 0"}] * 3 + [{"0, 1, 1"}] * 5, job.output


def test_a_new_world_counts_too(job: Job) -> None:
    script = job.folder / "script.py"
    script.write_text(SCRIPT.format(steps=60, pause=0.02))
    job.start("-n", "2", script=[script]).until("epoch 10 ")
    os.kill(members(job.name)[0].mpirun, signal.SIGKILL)
    job.finish()
    assert job.status == 0, job.output
    found = epochs(job)
    assert (found[0], found[59]) == ({"0, 1, 0"}, {"0, 2, 0"}), job.output
