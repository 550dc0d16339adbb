"""Embedding tables between hosts, which are network namespaces of this machine: rows travel over their network.

The namespaces have one shared memory, but workers with different addresses read nothing there.
"""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest

import meshmend as mm
from meshmend.job.shm.inspect import members
from tests.jobs.jobs import Job
from tests.jobs.namespaces import AGENT, Hosts
from tests.jobs.test_embeddings import SCRIPT, alone, assert_as_alone

pytestmark = pytest.mark.jobs


def words(policy: str = "shrink") -> list[str]:
    return ["--hosts", "a:2,b:2", "--launch-agent", AGENT, "--on-failure", policy, "--log-every", "0"]


@pytest.mark.parametrize(("rank", "phase"), [(1, "compute"), (0, "allreduce"), (1, "commit")])
def test_a_kill_in_any_phase_between_hosts_changes_no_bit(job: Job, hosts: Hosts, rank: int, phase: str) -> None:
    job.on, job.faults = partial(hosts.line, "a"), [mm.testing.Fault(rank=rank, step=5, point=phase)]
    job.run(*words(), script=[SCRIPT, "grow=1", "share=0.9"])
    assert_as_alone(job, 3, "grow=1")


def test_a_replacement_takes_its_rows_from_both_hosts(job: Job, hosts: Hosts) -> None:
    job.on = partial(hosts.line, "a")
    job.start(*words("replace"), script=[SCRIPT, "crowd=4", "least=60", "steps=100000", "pause=0.02"]).until("step 9 ")
    os.kill([one.worker for one in members(job.name)][2], signal.SIGKILL)
    job.finish()
    assert job.status == 0, job.output
    steps = job.output.split("weights ")[1].split(" after ")[1].split()[0]
    assert_as_alone(job, 4, f"steps={steps}")


def test_no_row_is_lost_with_a_host(job: Job, hosts: Hosts) -> None:
    """Every slice has a buddy on the other host: with those of one host alone, some slices would have none left."""
    job.on, options = partial(hosts.line, "a"), ["steps=120", "pause=0.05"]
    job.start(*words(), script=[SCRIPT, *options]).until("step 9 ")
    hosts.crash("b")
    job.finish()
    assert job.status == 0, job.output
    assert job.weights == [alone("steps=120")[0]] * 2, job.output
    job.assert_clean()
