"""A worker as its courier sees it, through shared memory.

`WorkerPort` inherits from `WorkerMessages`, as the ports of sharded jobs do from it, because one wait serves them all:
whatever waits for the worker also watches for its death and for what else its courier owes it meanwhile, and a port of
slices adds to that (`_end_with_worker`, `place`). Each file has one use of the worker, in at most 20 methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from meshmend.base.clocks import STATE_POLL
from meshmend.errors import JobError
from meshmend.job.courier.worker_messages import WorkerMessages
from meshmend.job.faults import Point
from meshmend.job.protocol import Failure
from meshmend.job.shm import MEMORY, open_to_read
from meshmend.job.shm.buffers import Buffers
from meshmend.job.shm.marks import mark, membership, of_total_in_buffer
from meshmend.job.shm.records import Way
from meshmend.job.shm.segment import CourierSegment, Segment
from meshmend.job.transport.base import Hello, MeshPlans
from meshmend.job.transport.shared_memory import host


class WorkerPort(WorkerMessages):
    """What `mpi.py` needs of a worker: its messages, its state, and whether it lives."""

    def __init__(self, segment: CourierSegment, strike: Callable[[Point], None], mesh: MeshPlans | None) -> None:
        super().__init__(segment)
        self.mesh = mesh
        self._strike = strike
        self._group: list[Segment] = []
        self.afresh = False
        """Whether the worker must compute the next part from nothing."""

    def begin(self, round: int, lanes: tuple[int, ...]) -> None:
        """Ask for a part."""
        self.side.ask_part(round, lanes, afresh=self.afresh)

    def ready(self, seconds: float) -> bool:
        """Whether the part is there, now or when the worker rings; end with the worker, so that MPI tells the others.

        The last part of a worker that dies may still be summed.
        """
        if not self.side.is_answered():
            self.segment.courier_bell.wait(seconds)
        ready = self.side.is_answered()
        if ready:
            self.afresh = False
        else:
            self._end_with_worker()
        return ready

    def before(self, point: str) -> None:
        """Bring about the failure that a test asked for in this phase of a sum."""
        self._strike(Point(point))

    def state(self, round: int, *, on_device: bool = False) -> npt.NDArray[np.uint8] | None:
        """Have the worker export its state after a round; it may first have to finish its update.

        None if it begins another sum of the same step instead.
        """
        self.side.ask_state(round, on_device=on_device)
        while (found := self.side.state()) is None:
            self._end_with_worker()
            self.segment.courier_bell.wait(STATE_POLL)
        if found[0] != round:
            raise Failure
        return found[1]

    def adopt(self, round: int, state: npt.NDArray[np.uint8]) -> None:
        """Give the worker the state of another one; the round it is of is the courier's `done`."""
        del round
        self.side.give([state])

    def fetch(self, rank: int) -> None:
        """The same from a worker of this host, without sending anything."""
        try:
            self.side.give_from(rank)
        except OSError:
            raise Failure from None  # it has died, and its memory is gone

    def hello(self) -> Hello:
        """What the other members must know of this one."""
        down = self.mesh.links_down() if self.mesh is not None else 0
        worker, rank = self.segment.worker, self.segment.rank
        where = worker.device, worker.state_device
        return Hello(rank, host(MEMORY), worker.layout, self.segment.birth, down, *where)

    def neighbours(self, members: Sequence[Hello]) -> list[Buffers]:
        """The buffers of these workers of this host: the memory of one that dies is soon another worker's."""
        own, found = self.segment, list[Segment]()
        try:
            for member in members:
                one = own if member.rank == own.rank else open_to_read(own.run, member.rank)
                if one.birth != member.born:
                    raise Failure
                _ = one.buffers.part  # mapped now, it stays what it is, whatever takes its name
                if open_to_read(own.run, member.rank).birth != member.born:
                    raise Failure
                found.append(one)
        except (JobError, OSError):
            raise Failure from None  # one has died, and its memory is gone
        self._group = found
        return [one.buffers for one in found]

    def begun(self, round: int) -> bool:
        """Whether the couriers of all these workers have come to the sum of a round."""
        ours = mark(round, membership(self.segment.courier))
        return all(of_total_in_buffer(one.courier, round) == ours for one in self._group)

    def place(self, round: int, way: Way, look: Callable[[], None]) -> None:
        """Begin a sum; the last courier of a host that does so wakes the others."""
        super().place(round, way, look)
        if self.begun(round):
            for one in self._group:
                if one.rank != self.segment.rank:
                    one.courier_bell.ring()

    def nap(self, seconds: float) -> None:
        """Sleep until the last one rings, at most for so long."""
        self.segment.courier_bell.wait(seconds)
