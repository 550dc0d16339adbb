"""The numbers that are summed: one buffer for the worker's part, and one for each of the last totals.

    │ part │ total of even rounds │ total of odd rounds │

The worker writes the part, the courier the totals; couriers of the same host read each other's. The total of a round
stays until the total of the round after next, since a member may be one round behind the others.
"""

from __future__ import annotations

import mmap
import os

import numpy as np
import numpy.typing as npt

from meshmend.errors import SegmentGone
from meshmend.job.shm.files import RankFiles
from meshmend.job.shm.records import Numbers, WorkerRecord, WritableWorkerRecord

Array = npt.NDArray[np.generic]
TOTALS = 2
"""How many totals are kept."""
BUFFERS = 1 + TOTALS
TYPES: dict[Numbers, type[np.generic]] = {Numbers.FLOAT32: np.float32, Numbers.INT32: np.int32}


class Buffers:
    """The buffers of one rank, described by its worker's record."""

    def __init__(self, files: RankFiles, worker: WorkerRecord) -> None:
        self._files, self._worker = files, worker
        self._mapped: npt.NDArray[np.generic] | None = None

    @property
    def exist(self) -> bool:
        """Whether the worker has made them."""
        return self._worker.has_buffers

    @property
    def numbers(self) -> int:
        """Numbers in each of them."""
        return self._worker.numbers

    @property
    def packed(self) -> int:
        """How many of the first numbers hold pairs of bf16 instead."""
        return self._worker.packed

    def part(self) -> Array:
        """The worker's part, footer included."""
        return np.asarray(self._all()[0])

    def total(self, round: int) -> Array:
        """The total of a round."""
        return np.asarray(self._all()[1 + round % TOTALS])

    def _all(self) -> npt.NDArray[np.generic]:
        """Mapped once: the memory stays what it is, even when the next worker of this rank makes its own."""
        if self._mapped is None:
            kind, numbers = TYPES[self._worker.kind], self._worker.numbers
            size = BUFFERS * numbers * np.dtype(kind).itemsize
            file = self._files.open("buffers", os.O_RDWR)
            try:
                if os.fstat(file).st_size != size:
                    raise SegmentGone(f"the buffers of rank {self._files.rank} are those of another worker")
                self._mapped = np.frombuffer(mmap.mmap(file, size), kind).reshape(BUFFERS, numbers)
            finally:
                os.close(file)
        return self._mapped


def make_buffers(
    files: RankFiles, worker: WritableWorkerRecord, numbers: int, kind: npt.DTypeLike, packed: int, layout: int
) -> None:
    """Make a worker's buffers, once it knows the size of its gradients; the first `packed` numbers hold bf16."""
    dtype = np.dtype(kind)
    os.close(files.reserve("buffers", BUFFERS * numbers * dtype.itemsize))
    worker.layout = layout
    worker.kind = next(number for number, found in TYPES.items() if np.dtype(found) == dtype)
    worker.packed = packed
    worker.numbers = numbers
    worker.has_buffers = True
