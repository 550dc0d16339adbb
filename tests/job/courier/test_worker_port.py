"""What a courier sees of its neighbours, through their shared memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshmend.base.processes import Identity
from meshmend.job.courier.worker_port import WorkerPort
from meshmend.job.reduction.base import WireFormat
from meshmend.job.reduction.float32 import Float32
from meshmend.job.shm import create_as_agent, open_as_courier, open_as_worker
from meshmend.job.shm.buffers import make_buffers
from meshmend.job.shm.records import Way
from meshmend.job.transport.base import Hello
from tests.job.shm.conftest import home as home

RUN = "neighbours"


def rung(port: WorkerPort) -> bool:
    """Whether its bell has rung since the last look."""
    file = port.segment.courier_bell._open()
    try:
        return bool(os.read(file, 99))
    except BlockingIOError:
        return False


@pytest.fixture
def ports(home: Path) -> list[WorkerPort]:
    """Three couriers of a group that has met."""
    assert not home.exists()
    found = []
    for rank in range(3):
        create_as_agent(RUN, rank).agent.worker = Identity.of(os.getpid())
        worker = open_as_worker(RUN, rank)
        make_buffers(worker.files, worker.worker, WireFormat(Float32, 100), 0)
        segment = open_as_courier(RUN, rank)
        segment.courier.world = 1
        found.append(WorkerPort(segment, lambda _: None, None))
    members = [Hello(port.segment.rank, 1, born=port.segment.birth) for port in found]
    for port in found:
        port.neighbours(members)
    return found


def test_the_last_courier_that_comes_to_a_sum_wakes_the_others(ports: list[WorkerPort]) -> None:
    for round in range(4):
        for port in ports:
            assert not any(one.begun(round) for one in ports) and not any(map(rung, ports))
            port.place(round, Way.SHARED, lambda: None)
        assert all(one.begun(round) for one in ports)
        assert list(map(rung, ports)) == [True, True, False]


def test_who_sums_in_another_membership_has_not_come_to_this_sum(ports: list[WorkerPort]) -> None:
    ports[1].segment.courier.shrink = 1
    for port in ports:
        port.place(0, Way.SHARED, lambda: None)
    assert not any(one.begun(0) for one in ports) and not any(map(rung, ports))
