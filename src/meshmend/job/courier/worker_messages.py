"""Where a worker's messages lie, as its courier sees it: its part, its totals, and what its device is asked for."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from meshmend.base.clocks import EXIT_POLL
from meshmend.base.processes import ExitProbe
from meshmend.job.protocol import Failure, Total
from meshmend.job.reduction.base import WireFormat
from meshmend.job.reduction.footer import Footer
from meshmend.job.shm.mailbox import CourierSide
from meshmend.job.shm.marks import where_is
from meshmend.job.shm.records import Outcome, Task, Way, Where
from meshmend.job.shm.segment import CourierSegment
from meshmend.job.transport.base import Hello


class WorkerMessages:
    """What sums need of a worker."""

    def __init__(self, segment: CourierSegment) -> None:
        self.segment = segment
        self.side = CourierSide(segment)
        self.footer = Footer(segment.worker.lanes, segment.agent.ranks)
        self.exit = ExitProbe(segment.agent.worker)
        self.account = Total((), {}, 0)
        """What the last total said."""
        self.differs: Callable[[], None] = lambda: None
        """Called when the last total said that the members' states differ."""

    def _end_with_worker(self) -> None:
        if self.exit.is_exiting() or not self.segment.in_job:  # it may have been let go, and be in the next job
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def generation(self) -> int:
        """How many files of buffers the worker has made."""
        return self.segment.worker.generation

    @property
    def wire(self) -> WireFormat:
        """The format of its messages."""
        return self.segment.buffers.wire

    @property
    def used(self) -> int:
        """How many numbers of its messages belong to the current sum."""
        return self.segment.buffers.used

    @property
    def several(self) -> bool:
        """Whether steps have several sums."""
        return self.segment.worker.sums > 1

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
        if len(set(self.account.digests.values())) > 1 and not self.account.astray:
            self.differs()
        return self.account

    @property
    def tail(self) -> int:
        """Where the footer begins."""
        return self.wire.size - self.footer.size

    def use_worker(
        self, task: Task, round: int, look: Callable[[], None] = lambda: None, members: Sequence[Hello] = ()
    ) -> Outcome:
        """Have the worker do something with the members' memory, and wait; `look` raises if a member has died."""
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
        self.side.begin_total(round)
        self.gathered(0)
        on_device = way is Way.DEVICE
        if self.segment.courier.way is not way:
            self.segment.courier.way = way
        if self.segment.worker.part_on_device is not on_device:
            self._must(self.use_worker(Task.RAISE if on_device else Task.LOWER, round, look))

    def placed(self, round: int, where: Where) -> None:
        """The total of a round is there."""
        self.side.place_total(round, where)

    def take_total(self, round: int, total: npt.NDArray[np.generic]) -> None:
        """Take the total of a round from another member, which may have made other buffers since: it was no sum."""
        own = self.total(round)
        self.side.take_total(round)
        self.gathered(0)  # what a device has copied of another attempt does not count
        own[:] = total.view(own.dtype) if total.nbytes == own.nbytes else 0
        self.placed(round, Where.BUFFER)

    def exported(self, round: int) -> npt.NDArray[np.generic]:
        """The total of a round in the buffer, wherever it was."""
        if where_is(self.segment.courier, round) is not Where.BUFFER:
            self._must(self.use_worker(Task.EXPORT, round))
        return self.total(round)

    def _must(self, outcome: Outcome) -> None:
        if outcome is not Outcome.DONE:
            raise Failure
