"""Sharded updates between hosts, which are network namespaces of this machine: slices travel as messages."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest

import meshmend as mm
from meshmend.job.shm.inspect import members
from tests.jobs.jobs import Job
from tests.jobs.namespaces import AGENT, Hosts
from tests.jobs.test_shared_updates import SCRIPT, assert_as_unsharded

pytestmark = pytest.mark.jobs


@pytest.mark.parametrize(("rank", "phase"), [(1, "add"), (0, "take"), (0, "meet"), (1, "give")])
def test_a_kill_in_every_phase_between_hosts_changes_no_bit(job: Job, hosts: Hosts, rank: int, phase: str) -> None:
    """Sums of a host, their totals, and weights: each goes on to others of that host, or stops with one that dies."""
    job.on, job.faults = partial(hosts.line, "a"), [mm.testing.Fault(rank=rank, step=5, point=phase)]
    words = ["--hosts", "a:2,b:2", "--launch-agent", AGENT, "--on-failure", "shrink", "--log-every", "0"]
    assert_as_unsharded(job.run(*words, script=[SCRIPT, "grow=1"]), 3, "grow=1")


@pytest.mark.parametrize("rank", [0, 3])
def test_a_worker_of_either_host_dies_and_no_bit_changes(job: Job, hosts: Hosts, rank: int) -> None:
    job.on, options = partial(hosts.line, "a"), ["steps=60", "pause=0.02"]
    words = ["--hosts", "a:2,b:2", "--launch-agent", AGENT, "--on-failure", "shrink", "--log-every", "0"]
    job.start(*words, script=[SCRIPT, *options]).until("step 9 ")
    os.kill([one.worker for one in members(job.name)][rank], signal.SIGKILL)
    assert_as_unsharded(job.finish(), 3, "steps=60")
