"""A worker as its courier sees it, through shared memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from meshmend.base.clocks import EXIT_POLL, STATE_POLL
from meshmend.base.processes import ExitProbe
from meshmend.errors import JobError
from meshmend.job.faults import Point
from meshmend.job.protocol import Failure, Total
from meshmend.job.reduction.base import WireFormat
from meshmend.job.reduction.footer import Footer
from meshmend.job.shm import MEMORY, open_to_read
from meshmend.job.shm.buffers import Buffers
from meshmend.job.shm.mailbox import CourierSide
from meshmend.job.shm.records import Outcome, Task, Way
from meshmend.job.shm.segment import CourierSegment
from meshmend.job.transport.base import Hello, MeshPlans
from meshmend.job.transport.shared_memory import host


class WorkerPort:
    """What `mpi.py` needs of a worker: its part, a place for totals, its state."""

    def __init__(self, segment: CourierSegment, strike: Callable[[Point], None], mesh: MeshPlans | None) -> None:
        self.segment = segment
        self.side = CourierSide(segment)
        self.mesh = mesh
        self._strike = strike
        self.afresh = False
        """Whether the worker must compute the next part from nothing."""
        self.footer = Footer(segment.worker.lanes, segment.agent.ranks)
        self.exit = ExitProbe(segment.agent.worker)
        self.account = Total((), {}, 0)
        """What the last total said."""
        self.differs: Callable[[], None] = lambda: None
        """Called when the last total said that the members' states differ."""

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

    def _end_with_worker(self) -> None:
        if self.exit.is_exiting() or not self.segment.in_job:  # it may have been let go, and be in the next job
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, point: str) -> None:
        """Bring about the failure that a test asked for in this phase of a sum."""
        self._strike(Point(point))

    @property
    def generation(self) -> int:
        """How many files of buffers the worker has made."""
        return self.segment.worker.generation

    @property
    def wire(self) -> WireFormat:
        """The format of its messages."""
        return self.segment.buffers.wire

    @property
    def part(self) -> npt.NDArray[np.generic]:
        """The worker's part."""
        return self.segment.buffers.part

    def total(self, round: int) -> npt.NDArray[np.generic]:
        """Where the total goes."""
        return self.segment.buffers.total(round)

    def read(self, total: npt.NDArray[np.generic]) -> Total:
        """The footer of a total."""
        self.account = self.footer.read(total)
        if len(set(self.account.digests.values())) > 1:
            self.differs()
        return self.account

    @property
    def tail(self) -> int:
        """Where the footer begins."""
        return self.wire.size - self.footer.size

    def use_device(
        self, task: Task, round: int, look: Callable[[], None] = lambda: None, members: Sequence[Hello] = ()
    ) -> Outcome:
        """Have the worker do something with its device, and wait for that; `look` raises if a member has died."""
        self.side.ask_device(task, round, tuple(word for one in members for word in (one.rank, one.born)))
        while (outcome := self.side.device_outcome()) is None:
            look()
            self._end_with_worker()
            self.segment.courier_bell.wait(EXIT_POLL)
        return outcome

    def has(self, numbers: int) -> bool:
        """Whether so many numbers of the part are there."""
        return self.segment.buffers.has(min(numbers, self.tail))

    def complete(self, numbers: int, look: Callable[[], None] = lambda: None) -> None:
        """Wait until so many numbers of the part are there; a worker that dies before takes this courier with it."""
        while not self.has(numbers):
            look()
            self._end_with_worker()
            self.segment.courier_bell.wait(EXIT_POLL)

    def gathered(self, numbers: int) -> None:
        """So many numbers of the total are there; 0 begins another attempt at it."""
        self.side.gathered(numbers)

    def spent(self, seconds: float) -> None:
        """For benchmarks: how much of a sum was hidden."""
        self.segment.courier.busy = int(1e6 * seconds)

    def place(self, round: int, way: Way, look: Callable[[], None]) -> None:
        """Begin a sum: have the part where the group sums; the worker brings the next one there at once."""
        self.gathered(0)
        on_device = way is Way.DEVICE
        if self.segment.courier.way is not way:
            self.segment.courier.way = way
        if self.segment.worker.part_on_device is not on_device:
            self._must(self.use_device(Task.RAISE if on_device else Task.LOWER, round, look))

    def placed(self, round: int, *, on_device: bool) -> None:
        """The total of a round is there."""
        self.side.place_total(round, on_device=on_device)

    def exported(self, round: int) -> npt.NDArray[np.generic]:
        """The total of a round in the buffer, wherever it was."""
        if self.segment.courier.on_device == round:
            self._must(self.use_device(Task.EXPORT, round))
        return self.total(round)

    def _must(self, outcome: Outcome) -> None:
        if outcome is not Outcome.DONE:
            raise Failure

    def state(self, round: int, *, on_device: bool = False) -> npt.NDArray[np.uint8]:
        """Have the worker export its state after a round; it may first have to finish its update."""
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
        own, found = self.segment, []
        try:
            for member in members:
                one = own if member.rank == own.rank else open_to_read(own.run, member.rank)
                if one.birth != member.born:
                    raise Failure
                _ = one.buffers.part  # mapped now, it stays what it is, whatever takes its name
                if open_to_read(own.run, member.rank).birth != member.born:
                    raise Failure
                found.append(one.buffers)
        except (JobError, OSError):
            raise Failure from None  # one has died, and its memory is gone
        return found
