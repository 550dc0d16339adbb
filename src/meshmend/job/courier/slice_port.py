"""A worker of a sharded job as its courier sees it, through shared memory: what `sharded_mpi.py` needs of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from meshmend.base.clocks import STATE_POLL
from meshmend.errors import JobError
from meshmend.job.courier.copy_port import CopyPort
from meshmend.job.faults import Point
from meshmend.job.protocol import Evicted, Failure, Total
from meshmend.job.shm import open_to_read
from meshmend.job.shm.records import Slices
from meshmend.job.shm.segment import CourierSegment
from meshmend.job.shm.sharded_memory import ShardedMemory
from meshmend.job.shm.slices import SliceMemory, Sums
from meshmend.job.slices.holder import digest_of
from meshmend.job.transport.base import Buffers, Hello
from meshmend.job.transport.crew import Crew

Floats = npt.NDArray[np.float32]


class SlicePort(CopyPort):
    """Its messages, its state, its weights and its slices."""

    def __init__(self, segment: CourierSegment, memory: ShardedMemory, strike: Callable[[Point], None]) -> None:
        super().__init__(segment, strike, None)
        self._memory = memory
        self._slices = SliceMemory.open(segment.files, segment.worker)

        self.bounds: list[int] = self._slices.bounds.tolist()
        """Where each slice begins in the flat state."""
        self._crews: dict[int, Crew] = {}
        self._neighbours: dict[tuple[int, int], SliceMemory] = {}
        """The weights of other workers of this host, by rank and birth."""

    @property
    def stretches(self) -> list[int]:
        """The same in a message; before the first sum, messages hold no gradients."""
        return self.bounds if self.segment.worker.layout else [0] * len(self.bounds)

    @property
    def rest(self) -> npt.NDArray[np.generic]:
        """What everybody needs of the part: sums of other things than weights, the notes, and the footer."""
        return self.part[self.stretches[-1] :]

    def ready(self, seconds: float) -> bool:
        """Whether the part is there; one that says that its worker leaves is remembered."""
        self._check()
        found = super().ready(seconds)
        if found:
            leaving = self.footer.leaves(self.part)
            if self._memory.leaving is not leaving:
                self._memory.leaving = leaving
        return found

    def add(self, round: int, slices: Collection[int], parts: Sequence[Buffers]) -> Total:
        """Add up these slices, and what all need, of parts on this host; what the footer says."""
        total, bounds, wire = self.total(round), self.stretches, self.wire
        found = [one.part for one in parts]
        crew = self._crews.get(len(parts)) or self._crews.setdefault(len(parts), Crew(len(parts)))

        def add(one: slice) -> None:
            wire.combine([part[one] for part in found], total[one], one.start)

        for run in [*_runs(slices, bounds), slice(bounds[-1], len(total))]:
            crew.divide(add, run, total.itemsize)
        return self.read(total)

    def copy_weights(self, givers: Mapping[int, Hello]) -> None:
        """Take the new weights of these slices from members of this host; `Failure` where they are not as agreed."""
        for number, giver in givers.items():
            theirs = self._neighbour(giver)
            self.receive(number, theirs.weights[self.bounds[number] : self.bounds[number + 1]])

    def _neighbour(self, member: Hello) -> SliceMemory:
        """The weights of a worker of this host: the memory of one that dies is soon another worker's."""
        found = self._neighbours.get((member.rank, member.born))
        if found is None:
            try:
                segment = open_to_read(self.segment.run, member.rank)
                found = SliceMemory.open(segment.files, segment.worker)
                if {segment.birth, open_to_read(self.segment.run, member.rank).birth} != {member.born}:
                    raise Failure
            except (JobError, OSError):
                raise Failure from None  # it has died, and its memory is gone
            self._neighbours[member.rank, member.born] = found
        return found

    def measure(self, round: int, stage: int) -> tuple[Sums, Sums]:
        """The sums of squares of the slices held here, with 0 for the others, and where those of all slices go."""
        own, every = self._slices.measured[stage], self._slices.squares[stage]
        if not self._memory.active:
            return np.zeros_like(own), every
        self._ask(round, stage)  # unless it has said so, and may have updated these slices since
        return own, every

    def update(self, round: int, slices: Collection[int]) -> None:
        """Have the worker update its slices, unless it has: then it may be computing again."""
        del slices  # as `held` has them, which outlives this courier
        self._ask(round, self.segment.worker.measures)

    def _ask(self, round: int, stage: int) -> None:
        if not self.side.updated(round, stage):
            self.side.ask_update(round, stage)
        while not self.side.updated(round, stage):
            self._end_with_worker()
            self.segment.courier_bell.wait(STATE_POLL)
        self._check()

    def _check(self) -> None:
        """Go no further with a worker that has found a slice wrong."""
        mail = self.segment.worker.updated
        if mail is not None and mail.body.wrong >= 0:
            raise Evicted(
                f"slice {mail.body.wrong} of worker {self.segment.rank} changed between two updates: a bit flipped in "
                "memory, or the optimizer's state was changed outside of job.update"
            )

    def _end_with_worker(self) -> None:
        super()._end_with_worker()
        self._check()  # also while its state, or copies of its slices, are waited for

    def digests(self) -> dict[int, tuple[int, int]]:
        """Of the slices held here."""
        held = self._memory.held if self._memory.active else ()
        table: list[list[int]] = self._slices.digests.tolist()
        return {number: (table[number][0], table[number][1]) for number in held}

    def agree(self, digests: dict[int, tuple[int, int]]) -> None:
        """All holders have these."""
        self._slices.agreed[list(digests)] = np.array(list(digests.values()), np.uint64).reshape(-1, 2)

    def weights(self, number: int) -> Floats:
        """Of a slice that is held here."""
        return self._slices.weights[self.bounds[number] : self.bounds[number + 1]]

    def receive(self, number: int, weights: Floats) -> None:
        """Take the new weights of a slice; `Failure` where they are not what its holders agreed on."""
        here = self.weights(number)
        here[:] = weights
        if digest_of(here) != int(self._slices.agreed[number, 0]):
            raise Failure

    def gives(self, slices: Collection[int]) -> None:
        """Which slices this worker gives out, and so writes to checkpoints."""
        mail, given = self.segment.courier.gives, Slices(tuple(sorted(slices)))
        if mail is None or mail.body != given:
            self.segment.courier.gives = given


def _runs(slices: Collection[int], bounds: Sequence[int]) -> Iterator[slice]:
    """Where these slices lie in a message; neighbours as one stretch."""
    begin = end = 0
    for number in sorted(slices):
        if bounds[number] != end:
            if begin < end:
                yield slice(begin, end)
            begin = bounds[number]
        end = bounds[number + 1]
    if begin < end:
        yield slice(begin, end)
