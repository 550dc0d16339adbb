"""A worker that joins a loop over epochs begins in the epoch in which the job stands."""

from __future__ import annotations

import re

import pytest

from tests.jobs.jobs import Job

SCRIPT = """
import os, signal
import numpy as np
import meshmend as mm
x = np.ones((32, 3), np.float32)
with mm.Job(x, batch=16, lanes=4) as job:
    state = job.share(np.zeros(3, np.float32))
    for epoch in job.epochs(10**6):
        for step in job.steps():
            state = state + job.sum(lambda lane: lane.sum(0))
            job.commit(state)
        assert job.evaluate(x, len) == len(x)
        print(f"process {os.getpid()} of rank {job.rank} evaluated {epoch}", flush=True)
        if job.rank == 1 and epoch == 3 and not os.path.exists("died"):
            open("died", "w")
            os.kill(os.getpid(), signal.SIGKILL)
        if epoch > 3 and len(job.gather(epoch)) == 2:
            break  # after the same epoch everywhere
"""


@pytest.mark.jobs
def test_a_newcomer_repeats_no_evaluation(job: Job) -> None:
    path = job.folder / "made.py"
    path.write_text(SCRIPT)
    job.run("-n", "2", script=[path])
    assert job.status == 0, job.output
    found: dict[tuple[int, int], list[int]] = {}
    for process, rank, epoch in re.findall(r"process (\d+) of rank (\d+) evaluated (\d+)", job.output):
        found.setdefault((int(rank), int(process)), []).append(int(epoch))
    [whole] = [epochs for (rank, _), epochs in found.items() if rank == 0]
    dead, late = (epochs for (rank, _), epochs in found.items() if rank == 1)
    assert whole == [*range(whole[-1] + 1)] and dead == [0, 1, 2, 3]
    assert late[0] > 3 and late == [*range(late[0], whole[-1] + 1)], job.output
    job.assert_clean()
