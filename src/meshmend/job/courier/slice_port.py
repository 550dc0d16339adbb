"""A worker of a sharded job as its courier sees it, through shared memory: what `sharded_mpi.py` needs of it."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt

from meshmend.base.clocks import STATE_POLL
from meshmend.job.courier.worker_port import WorkerPort
from meshmend.job.faults import Point
from meshmend.job.holder import digest_of
from meshmend.job.protocol import Evicted, Failure, Total
from meshmend.job.reduction.exact import ExactSum
from meshmend.job.shm.records import Slices
from meshmend.job.shm.segment import CourierSegment
from meshmend.job.shm.sharded_memory import ShardedMemory
from meshmend.job.shm.slices import SliceMemory

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


class SlicePort(WorkerPort):
    """Its messages, its state, its weights and its slices."""

    def __init__(self, segment: CourierSegment, memory: ShardedMemory, strike: Callable[[Point], None]) -> None:
        super().__init__(segment, strike, None)
        self._memory = memory
        self._slices = SliceMemory.open(segment.files, segment.worker)

        self.bounds: list[int] = self._slices.bounds.tolist()
        """Where each slice begins in the flat state."""

    @property
    def stretches(self) -> list[int]:
        """The same in a message; before the first sum, messages hold no gradients."""
        return self.bounds if self.wire.kind is ExactSum else [0] * len(self.bounds)

    @property
    def rest(self) -> npt.NDArray[np.generic]:
        """What everybody needs of the part: sums of other things than weights, the notes, and the footer."""
        return self.part[self.stretches[-1] :]

    def ready(self, seconds: float) -> bool:
        """Whether the part is there; one that says that its worker leaves is remembered."""
        found = super().ready(seconds)
        if found:
            leaving = self.footer.leaves(self.part)
            if self._memory.leaving is not leaving:
                self._memory.leaving = leaving
        return found

    def take(self, round: int, totals: dict[int, npt.NDArray[np.generic]], rest: npt.NDArray[np.generic]) -> Total:
        """Keep the totals of a round's slices; what its footer says."""
        total, bounds = self.total(round), self.stretches
        for number, found in totals.items():
            total[bounds[number] : bounds[number + 1]] = found
        total[bounds[-1] :] = rest
        return self.read(total)

    def update(self, round: int, slices: Collection[int]) -> None:
        """Have the worker update its slices, unless it has: then it may be computing again."""
        del slices  # as `held` has them, which outlives this courier
        self.side.ask_update(round)
        while (wrong := self.side.updated(round)) is None:
            self._end_with_worker()
            self.segment.courier_bell.wait(STATE_POLL)
        if wrong >= 0:
            raise Evicted(
                f"slice {wrong} of worker {self.segment.rank} changed between two updates: a bit flipped in memory, or "
                "the optimizer's state was changed outside of job.update"
            )

    def digests(self) -> dict[int, tuple[int, int]]:
        """Of the slices held here."""
        held = self._memory.held if self._memory.active else ()
        table: list[tuple[int, int]] = [(int(one), int(two)) for one, two in self._slices.digests]
        return {number: table[number] for number in held}

    def agree(self, digests: dict[int, tuple[int, int]]) -> None:
        """All holders have these."""
        for number, found in digests.items():
            self._slices.agreed[number] = found

    def weights(self, number: int) -> Floats:
        """Of a slice that is held here."""
        return self._slices.weights[self.bounds[number] : self.bounds[number + 1]]

    def receive(self, number: int, weights: Floats) -> None:
        """Take the new weights of a slice; `Failure` where they are not what its holders agreed on."""
        if digest_of(weights) != int(self._slices.agreed[number, 0]):
            raise Failure
        self.weights(number)[:] = weights

    def gives(self, slices: Collection[int]) -> None:
        """Which slices this worker gives out, and so writes to checkpoints."""
        mail, given = self.segment.courier.gives, Slices(tuple(sorted(slices)))
        if mail is None or mail.body != given:
            self.segment.courier.gives = given

    def copies_of(self, slices: Collection[int], look: Callable[[], None]) -> dict[int, Bytes]:
        """Copies of slices, for other holders: the worker may be computing."""
        self.side.ask_copies(tuple(sorted(slices)))
        while not self.side.has_copies():
            look()
            self._end_with_worker()
            self.segment.courier_bell.wait(STATE_POLL)
        return {number: self.segment.files.take_copy(number) for number in slices}

    def fill(self, number: int, copy: Bytes) -> None:
        """Have the worker hold a slice from now on."""
        self.segment.files.put_fill(number, copy)
