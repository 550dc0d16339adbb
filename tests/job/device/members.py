"""Workers that sum in device memory, and the questions of their couriers, in one process or in forks of it."""

from __future__ import annotations

import os

import numpy as np

from meshmend.base.processes import Identity
from meshmend.job.device.stand_in import StandIn
from meshmend.job.device.sums import DeviceSums
from meshmend.job.reduction.base import WireFormat
from meshmend.job.reduction.float32 import Float32
from meshmend.job.shm import create_as_agent, open_as_courier, open_as_worker
from meshmend.job.shm.buffers import make_buffers
from meshmend.job.shm.mailbox import CourierSide
from meshmend.job.shm.records import Outcome, Task, Where

RUN, SIZE, FOOTER = "sums", 1001, 7
WIRE = WireFormat(Float32, SIZE + FOOTER)


def part_of(rank: int) -> np.ndarray:
    return np.arange(SIZE, dtype=np.float32) * (rank + 1)


class Courier:
    """What the courier of one rank asks its worker."""

    def __init__(self, rank: int) -> None:
        self.segment = open_as_courier(RUN, rank)
        self.side = CourierSide(self.segment)

    @property
    def who(self) -> tuple[int, int]:
        return self.segment.rank, self.segment.birth

    def ask(self, task: Task, round: int = 0, *members: Courier) -> None:
        self.side.ask_device(task, round, tuple(word for one in members for word in one.who))

    def done(self, round: int, *, on_device: bool = True) -> None:
        self.side.place_total(round, Where.DEVICE if on_device else Where.BUFFER)
        self.segment.courier.done = round


class Member:
    """A worker and its courier; the worker answers when it is told to."""

    def __init__(self, rank: int) -> None:
        agent = create_as_agent(RUN, rank).agent
        agent.worker, agent.ranks = Identity.of(os.getpid()), 3
        self.rank, self.segment = rank, open_as_worker(RUN, rank)
        self.sums = DeviceSums(self.segment, StandIn(), staged=False)
        self.renew()
        self.courier = Courier(rank)

    def renew(self, size: int = SIZE) -> None:
        """Make buffers, and bring a part."""
        wire = WireFormat(Float32, size + FOOTER)
        self.sums.make(wire, size)
        make_buffers(self.segment.files, self.segment.worker, wire, 0)
        self.bring(0)

    def bring(self, round: int) -> None:
        """Bring a part."""
        self.sums.own.part(round)[:SIZE] = part_of(self.rank)
        self.sums.own.publish(round)

    def does(self, task: Task, round: int = 0, *members: Member) -> Outcome | None:
        self.courier.ask(task, round, *(one.courier for one in members))
        self.sums.serve()
        return self.courier.side.device_outcome()
