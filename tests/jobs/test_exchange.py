"""What workers tell each other besides sums, while some of them die."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshmend.telemetry import Evaluated, read
from tests.jobs.jobs import Job

SCRIPT = """
import os, signal, sys
import numpy as np
import meshmend as mm
rank = int(os.environ["MESHMEND_RANK"])
x = np.ones((64, 3), np.float32)
def die(name, who=1):
    if rank == who and not os.path.exists(name):
        open(name, "w")
        os.kill(os.getpid(), signal.SIGKILL)
with mm.Job(x, batch=8, lanes=4, reduction=sys.argv[1], wire=sys.argv[2]) as job:
    state = job.share(np.zeros(3, np.float32))
    if not job.step:
        print("first", job.gather(rank), job.broadcast(f"of {rank}"), flush=True)
    for step in job.steps(24 if sys.argv[3] == "shrink" else 10**6):
        total = job.sum(lambda lane: lane.sum(0))
        state = state + total
        job.commit(state)
        if step % 4 == 0:
            if step == 8:
                die("gather")
            found = job.gather({"rank": rank, "long": np.full(400, rank, np.int32)})
            ranks = [one["rank"] for one in found]
            assert all((one["long"] == one["rank"]).all() for one in found)
            if step == 16 and sys.argv[3] == "shrink":
                print("evaluated", job.evaluate(x, lambda chunk: (die("evaluate", 2), len(chunk))[1]), flush=True)
            print("gathered", step, ranks, flush=True)
            job.barrier()
            if step > 8 and sys.argv[3] == "replace" and len(ranks) == 3:
                break  # in the same step everywhere
    print("state", state.tolist(), flush=True)
"""


def script(job: Job, *words: str) -> list[object]:
    path = job.folder / "made.py"
    path.write_text(SCRIPT)
    return [Path(path), *words]


@pytest.mark.parametrize("kinds", [("exact", "float32"), pytest.param(("float", "bf16"), marks=pytest.mark.jobs)])
def test_a_gather_and_an_evaluation_are_repeated_without_the_dead(job: Job, kinds: tuple[str, str]) -> None:
    """Also before the first sum, when nobody knows yet how large a message is."""
    job.run("-n", "3", "--on-failure", "shrink", script=script(job, *kinds, "shrink"))
    assert job.status == 0, job.output
    assert job.output.count("first [0, 1, 2] of 0") == 3, job.output
    assert job.output.count("gathered 4 [0, 1, 2]") == 3
    assert job.output.count("gathered 8 [0, 2]") == 2
    assert job.output.count("evaluated 64") == job.output.count("gathered 20 [0]") == 1
    assert job.output.count("state [192.0, 192.0, 192.0]") == 1
    [line] = [event for event in read(job.path) if isinstance(event, Evaluated)]
    assert (line.rank, line.step, line.size, line.chunk, line.by) == (0, 17, 64, 2, [[0, 32]])
    job.assert_clean()


@pytest.mark.jobs
def test_a_newcomer_takes_part_in_what_follows_its_first_step(job: Job) -> None:
    """It may join while the others gather: then it is in its first sum, and brings that again."""
    job.run("-n", "3", script=script(job, "exact", "float32", "replace"))
    assert job.status == 0, job.output
    assert job.output.count("gathered 8 [0, 2]") == 2, job.output
    assert len({line.split(" ", 2)[2] for line in job.output.splitlines() if "state [" in line}) == 1
    job.assert_clean()


ODD = """
import numpy as np
import meshmend as mm
with mm.Job(np.ones((64, 3), np.float32), batch=8, lanes=4) as job:
    state = job.share(np.zeros(3, np.float32))
    for step in job.steps(8):
        state = state + job.sum(lambda lane: lane.sum(0))
        job.commit(state)
        if step == 3 and job.first:
            print("got", job.gather("alone"), flush=True)
"""


def test_a_call_that_only_some_workers_make_ends_the_run(job: Job) -> None:
    path = job.folder / "made.py"
    path.write_text(ODD)
    job.run("-n", "2", script=[path])
    assert job.status == 2, job.output
    assert "worker 0 called job.gather where worker 1 called job.sum (step 4): all workers must" in job.output
    assert "got [" not in job.output
