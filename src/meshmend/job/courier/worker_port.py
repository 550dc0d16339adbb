"""A worker as its courier sees it, through shared memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from meshmend.base.processes import ExitProbe
from meshmend.errors import JobError
from meshmend.job.courier.mpi import Placed
from meshmend.job.faults import Point
from meshmend.job.protocol.protocol import Failure, Total
from meshmend.job.reduction.wire import Footer
from meshmend.job.shm.mailbox import CourierSide
from meshmend.job.shm.segment import CourierSegment
from meshmend.job.transport.mesh_mpi import Placing
from meshmend.job.transport.shared_memory import Neighbours, host

PAUSE = 0.01
"""Seconds between looks at a worker that exports its state."""


class WorkerPort:
    """What `mpi.py` needs of a worker: its part, a place for totals, its state."""

    def __init__(self, segment: CourierSegment, before: Callable[[Point], None], placing: Placing | None) -> None:
        self.segment = segment
        self.side = CourierSide(segment)
        self.placing = placing
        self.before = before
        self.afresh = False
        """Whether the worker must compute the next part from nothing."""
        self.footer = Footer(segment.worker.lanes, segment.agent.ranks)
        self.exit = ExitProbe(segment.agent.worker, segment.agent.worker_born)
        self.account = Total((), {}, 0)
        """What the last total said."""

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
        if self.exit.is_exiting():
            os.kill(os.getpid(), signal.SIGKILL)

    def part(self) -> npt.NDArray[np.generic]:
        """The worker's part."""
        return self.segment.buffers.part()

    def packed(self) -> int:
        """How many of its first numbers hold bf16."""
        return self.segment.buffers.packed

    def total(self, round: int) -> npt.NDArray[np.generic]:
        """Where the total goes."""
        return self.segment.buffers.total(round)

    def read(self, total: npt.NDArray[np.generic]) -> Total:
        """The footer of a total."""
        self.account = self.footer.read(total)
        return self.account

    def state(self, round: int) -> npt.NDArray[np.uint8]:
        """Have the worker export its state after a round; it may first have to finish its update."""
        self.side.ask_state(round)
        while (found := self.side.state()) is None:
            self._end_with_worker()
            self.segment.courier_bell.wait(PAUSE)
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

    def card(self) -> list[int]:
        """Rank, host, layout of the part, birth of its memory, links of its chip that are down, and shrinks so far."""
        down = self.placing.links.down() if self.placing is not None else 0
        segment = self.segment
        return [segment.rank, host(), segment.worker.layout, segment.birth, down, segment.courier.shrink]

    def met(self, cards: npt.NDArray[np.int64]) -> Neighbours | Placed | None:
        """Check that all members of a new group fit together, and find the way that sums take between them.

        A member may have repeated a shrink that the others saw succeed: they all count the most that any one counted.
        """
        ranks, hosts, layouts, births, down, shrinks = cards.T.tolist()
        if max(shrinks) != self.segment.courier.shrink:
            self.segment.courier.shrink = max(shrinks)
        if len(set(layouts)) > 1:
            most = max(layouts, key=layouts.count)
            odd = ", ".join(str(rank) for rank, layout in zip(ranks, layouts, strict=True) if layout != most)
            raise JobError(
                f"worker {odd} returned gradients with other leaves, shapes or types than the other workers: every "
                "worker must return the same tree"
            )
        if self.placing is not None:
            return self.placing.over(dict(zip(ranks, down, strict=True)), self.segment)
        if len(set(hosts)) > 1:
            return None
        try:
            return Neighbours(
                self.segment, dict(zip(ranks, births, strict=True)), lambda point: self.before(Point(point))
            )
        except (JobError, OSError):
            raise Failure from None  # one has died, and its memory is gone
