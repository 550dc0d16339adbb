"""The numbers that are summed: one buffer for the worker's part, and one for each of the last totals.

    │ part │ total of even rounds │ total of odd rounds │         each:  │ numbers of the sum │ room │ footer │

Where a step has several sums, there is room for the largest one, and the footer is always at the end. Each buffer
begins with a page, so that a slice of whole pages can be mapped elsewhere (`sliced.py`).

The worker writes the part, the courier the totals; couriers of the same host read each other's. The total of a round
stays until the total of the round after next, since a member may be one round behind the others.

A worker makes other buffers when its messages change: with the first sum after notes alone, with the first sum of a
step that is larger than those before it, and with the next job.
"""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshmend.base.mapped import PAGE
from meshmend.errors import SegmentGone
from meshmend.job.reduction.base import WireFormat
from meshmend.job.reduction.registry import wire_format
from meshmend.job.shm.files import RankFiles
from meshmend.job.shm.records import WorkerRecord, WritableWorkerRecord

Array = npt.NDArray[np.generic]
TOTALS = 2
"""How many totals are kept."""
BUFFERS = 1 + TOTALS


def stride(wire: WireFormat) -> int:
    """Bytes from one buffer to the next."""
    return -(-wire.nbytes // PAGE) * PAGE


def place_of_total(round: int, wire: WireFormat) -> int:
    """Where the total of a round begins in the file, in bytes."""
    return (1 + round % TOTALS) * stride(wire)


class Mapped(NamedTuple):
    """A file of buffers."""

    generation: int
    """Which of its worker's files this is."""
    rows: Array
    """All of them, with what is between them."""
    size: int
    """How many numbers each of them holds."""
    before: Mapped | None
    """The one before it."""


class Buffers:
    """The buffers of one rank, described by its worker's record."""

    def __init__(self, files: RankFiles, worker: WorkerRecord) -> None:
        self._files, self._worker = files, worker
        self._mapped: Mapped | None = None

    @property
    def exist(self) -> bool:
        """Whether the worker has made them."""
        return self._worker.generation > 0

    @property
    def wire(self) -> WireFormat:
        """The format of the messages in them."""
        return wire_format(self._worker.kind, self._worker.numbers, self._worker.head)

    @property
    def used(self) -> int:
        """How many numbers the present sum has."""
        return self._worker.used

    @property
    def part(self) -> Array:
        """The worker's part, footer included."""
        now = self._all()
        return now.rows[0, : now.size]

    def has(self, numbers: int) -> bool:
        """Whether this many numbers of the part have arrived: a device may still be copying the rest."""
        return self._worker.copied >= numbers

    def total(self, round: int) -> Array:
        """The total of a round."""
        now = self._all()
        if round < self._worker.since and now.before is not None:
            now = now.before
        return now.rows[1 + round % TOTALS, : now.size]

    @property
    def whole(self) -> Array:
        """All of them as they are mapped here, and what is between them."""
        return self._all().rows

    def _all(self) -> Mapped:
        """Mapped once: the memory stays what it is, even when the next worker of this rank makes its own.

        Two threads of a worker use this: each finds one file with all that belongs to it.
        """
        found, generation = self._mapped, self._worker.generation
        if found is None or found.generation != generation:
            before = None if found is None else found._replace(before=None)
            wire = self.wire
            file = self.open(os.O_RDWR)
            try:
                whole = mmap.mmap(file, BUFFERS * stride(wire))
            finally:
                os.close(file)
            rows = np.frombuffer(whole, wire.kind.dtype).reshape(BUFFERS, -1)
            self._mapped = found = Mapped(generation, rows, wire.size, before)
        return found

    def open(self, flags: int) -> int:
        """A descriptor of the file, which the caller closes; `SegmentGone` if it is not this worker's."""
        file = self._files.open("buffers", flags)
        if os.fstat(file).st_size != BUFFERS * stride(self.wire):
            os.close(file)
            raise SegmentGone(f"the buffers of rank {self._files.rank} are those of another worker")
        return file


def make_buffers(files: RankFiles, worker: WritableWorkerRecord, wire: WireFormat, layout: int, since: int = 0) -> None:
    """Make a worker's buffers, once it knows the size of its messages, from this round on."""
    files.path("buffers").unlink(missing_ok=True)  # a process that has the old buffers mapped keeps them
    os.close(files.reserve("buffers", BUFFERS * stride(wire)))
    worker.layout = layout
    worker.kind, worker.head = wire.kind.number, wire.head
    worker.numbers = wire.size
    worker.since = since
    worker.generation += 1
