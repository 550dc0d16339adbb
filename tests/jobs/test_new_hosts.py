"""Hosts that join a run while it goes on, in network namespaces: `--attach RUN --add-host c:4`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from meshmend.run.clusters.hosts import Host
from meshmend.run.console import sentence, world_reason
from meshmend.run.spec import load_saved
from meshmend.run.supervisor.messages import HostAdded, HostLost, Joined
from tests.jobs.conftest import no_hosts
from tests.jobs.jobs import DEADLINE, Job
from tests.jobs.namespaces import Hosts
from tests.jobs.test_hosts import committed, rank, start, started

pytestmark = pytest.mark.jobs
Undisturbed = Callable[..., str]
LONG = ["steps=160", "pause=0.05", "gate=140"]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    if no_hosts():
        pytest.skip(no_hosts())
    with Hosts(tmp_path, ["a", "b", "c", "d"]) as made:
        yield made


@pytest.fixture
def job(job: Job, hosts: Hosts) -> Job:
    job.on = partial(hosts.line, "a")
    return job


def add(job: Job, hosts: Hosts, text: str, on: str = "b") -> str:
    """Add a host from another one; what that says."""
    line = hosts.line(on, sys.executable, "-m", "meshmend", "run", "--attach", job.name, "--add-host", text)
    done = subprocess.run(line, cwd=job.folder, capture_output=True, text=True, timeout=DEADLINE)
    return f"{done.returncode} {done.stderr}"


def test_a_host_is_added_and_its_workers_take_part(job: Job, hosts: Hosts, undisturbed: Undisturbed) -> None:
    """A worker of the new host dies later like any other, and is replaced there."""
    start(job, "a:1,b:1", options=LONG).until("step 15 ")
    assert "cannot add host b: host b is already part of it" in add(job, hosts, "b:1")
    assert "room for 8 more workers" in add(job, hosts, "c:9")
    assert add(job, hosts, "c:2").startswith("0 ")
    job.until(world_reason(Joined((2, 3))))
    os.kill(rank(job, 3).worker, signal.SIGKILL)
    job.until(world_reason(Joined((3,))))
    job.open_gate()
    job.finish()
    assert job.status == 0, job.output
    assert job.weights == [undisturbed(LONG[0])] * 4, job.output
    assert sentence(HostAdded("c", (2, 3))) in job.output
    assert started(job) == [0, 1, 2, 3, 3]
    assert all(committed(job, rank)[-1] == 159 for rank in range(4))
    assert load_saved(str(job.path)).values["added"] == [Host("c", 2)]
    job.assert_clean()


def test_a_stranger_is_refused_and_the_run_goes_on(job: Job, hosts: Hosts, undisturbed: Undisturbed) -> None:
    start(job, "a:1,b:1", options=LONG).until("step 15 ")
    note = job.path / "door.json"
    true = note.read_text()
    note.write_text(json.dumps({**json.loads(true), "secret": "00" * 32}))
    assert "does not know the secret" in add(job, hosts, "c:2")
    note.write_text(true)
    job.until("refused a host that announced itself from 10.77.0.2")
    job.open_gate()
    job.finish()
    assert job.status == 0 and job.weights == [undisturbed(LONG[0])] * 2, job.output
    assert not note.exists()
    job.assert_clean()


def test_an_added_host_is_known_to_later_launchers(job: Job, hosts: Hosts, undisturbed: Undisturbed) -> None:
    """The launcher is killed after a host has joined, and another attaches; a third host joins through that one."""
    start(job, "a:1,b:1", options=LONG).until("step 15 ")
    add(job, hosts, "c:1")
    job.until(world_reason(Joined((2,))))
    assert job.process is not None
    job.process.kill()
    job.output += job.process.communicate()[0]
    job.start("--attach", job.name, "--add-host", "d:1", script=[], name=False).until(world_reason(Joined((3,))))
    job.open_gate()
    job.finish()
    assert job.status == 0, job.output
    assert job.weights == [undisturbed(LONG[0])] * 4, job.output
    assert load_saved(str(job.path)).values["added"] == [Host("c", 1), Host("d", 1)]
    job.assert_clean()


def test_a_host_that_dies_as_soon_as_it_was_added_costs_nothing(
    job: Job, hosts: Hosts, undisturbed: Undisturbed
) -> None:
    start(job, "a:2,b:1", "--on-failure", "shrink", options=LONG).until("step 15 ")
    add(job, hosts, "c:1")
    job.until(sentence(HostAdded("c", (3,))))
    hosts.crash("c")
    add(job, hosts, "nowhere:1")
    job.until("cannot add host nowhere")
    job.until(sentence(HostLost("c", (3,))))
    job.open_gate()
    job.finish()
    assert job.status == 0, job.output
    assert job.weights == [undisturbed(LONG[0])] * 3, job.output
    job.assert_clean()
