"""A courier ends with its worker, and counts how often its group shrank."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from meshmend.base.processes import Identity
from meshmend.job.shm import create_as_agent, leave, open_as_worker

RUN = f"test-courier-{os.getpid()}"
BEGIN = """
import os, sys
import mpi4py
mpi4py.rc.initialize = False  # no world is needed for this
from meshmend.job.courier import worker_messages, worker_port
from meshmend.job.shm import open_as_courier, open_as_worker
from meshmend.job.shm.mailbox import WorkerSide

segment, worker = open_as_courier(sys.argv[1], 0), open_as_worker(sys.argv[1], 0)
"""
ENDS = """
dying, killed = False, []
worker_messages.ExitProbe.is_exiting = lambda self: dying
worker_messages.os.kill = lambda process, how: killed.append((process, how))
port, side = worker_port.WorkerPort(segment, None, None), WorkerSide(worker)
port.begin(0, (0,))
assert not port.ready(0.0)
print(len(killed))
dying = True
side.answer(side.question(0))
assert port.ready(0.0)  # the last part of a dying worker may be summed
print(len(killed))
port.begin(1, (0,))
port.ready(0.0)
print(len(killed), killed[0] == (os.getpid(), worker_messages.signal.SIGKILL))
"""
ENLISTS = """
from meshmend.job.courier.mpi import Mpi

class Others:
    polls = 0

    def Get_size(self):
        return 2

    def Ibarrier(self):
        return self

    def Test(self):
        self.polls += 1
        return self.polls == 3

mpi = Mpi.__new__(Mpi)
mpi.world = Others()
mpi.enlist((0, 1))
print(mpi.world.polls, mpi.active is mpi.world)
"""
WAITS = """
from types import SimpleNamespace
from meshmend.job.courier import courier

class Parent:
    gone = False

class Killed(Exception):
    pass

def kill(process, how):
    raise Killed(process, how)

courier.os.kill = kill
parent, looks = Parent(), 0

def met(when, dies):
    global looks
    looks += 1
    parent.gone = looks >= dies
    assert looks < 9  # a courier that nobody wakes any more would wait on
    return looks >= when

for when, dies in ((3, 99), (99, 3), (3, 3)):
    parent.gone, looks = False, 0
    try:
        courier.Courier.wait_until(SimpleNamespace(parent=parent), lambda: met(when, dies))
        print("met")
    except Killed as killed:
        print("killed" if killed.args == (os.getpid(), courier.signal.SIGKILL) else killed)
"""


@pytest.fixture
def run() -> Iterator[str]:
    agent = create_as_agent(RUN, 0).agent
    agent.ranks, agent.worker = 3, Identity(7, 1)
    open_as_worker(RUN, 0).worker.lanes = 1
    yield RUN
    leave(RUN)


def courier(run: str, script: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", BEGIN + script, run], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_courier_ends_with_its_worker(run: str) -> None:
    assert courier(run, ENDS) == ["0", "0", "1", "True"]


def test_nobody_is_enlisted_before_all_have_come_so_far(run: str) -> None:
    """Otherwise one half of a broken network may count by a membership that the other has not heard of."""
    assert courier(run, ENLISTS) == ["3", "True"]


def test_a_courier_that_waits_ends_with_its_mpirun(run: str) -> None:
    """Also if what it waits for has come true at the same moment: that may be meant for another launcher's couriers."""
    assert courier(run, WAITS) == ["met", "killed", "killed"]
