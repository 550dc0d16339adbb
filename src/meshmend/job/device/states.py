"""A state that one worker lends to another of its host in device memory, so that none of it goes through the host.

    lender      copies the arrays of its committed state to a block of their own, once for all newcomers
    newcomer    maps the block, while the couriers still agree on the membership; copies the arrays to where its
                framework wants them when it begins; drops the mapping

The lender may die at any moment after the newcomer has mapped the block: the memory stays as long as it is mapped. If
it dies before that, its death is detected, and the couriers agree again. The copy must have the lender's digest.
"""

from __future__ import annotations

import math
import os
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import DeviceError, FormatError, JobError
from meshmend.job.device.base import Block, Memory
from meshmend.job.device.passing import LENT, About, Offer, fetch
from meshmend.job.shm.records import Outcome, Task
from meshmend.job.shm.segment import WorkerSegment, open_to_read
from meshmend.job.state.codec import Lent, lent_in
from meshmend.job.state.tree import Leaves, OnDevice

ALIGNED = 512
"""Bytes that every array begins on a multiple of."""


class LentStates:
    """The state that a worker lends, and the state that it was lent."""

    def __init__(self, segment: WorkerSegment, memory: Memory) -> None:
        self._segment, self._memory = segment, memory
        self._lock = threading.Lock()
        """For the block that is lent: another thread gives it out."""
        self._lent: Block | None = None
        self._number = 0
        self._offer: Offer | None = None
        self._taken: Block | None = None
        self._from: Lent | None = None

    # the lender

    def serve(self, task: Task) -> Outcome:
        """Carry out the courier's request."""
        if task is Task.TAKE:
            return self.take()
        self.release()
        return Outcome.DONE

    def lend(self, leaves: Leaves, digest: int) -> Lent | None:
        """Copy a state to memory that others can map; None if that is impossible: then it goes through the host."""
        self.release()
        places, size = [], 0
        for _, leaf in leaves:
            can = isinstance(leaf, OnDevice) and leaf.lies is not None and leaf.nbytes > 0
            places.append(size if can else -1)
            size += -(-leaf.nbytes // ALIGNED) * ALIGNED if can else 0
        if not size or not self._memory.spares(size):
            return None
        try:
            block = self._memory.allocate(size)
        except DeviceError:
            return None
        kept: list[Any] = []
        for place, (_, leaf) in zip(places, leaves, strict=True):
            if place >= 0 and isinstance(leaf, OnDevice) and leaf.lies is not None:
                address, keeps = leaf.lies()
                kept.append(keeps)
                self._memory.load(address, (block, place), leaf.nbytes)
        self._memory.finish()
        with self._lock:
            self._lent, self._number = block, self._number + 1
        if self._offer is None:
            self._offer = Offer(self._segment.files.folder, self._segment.rank, self._describe, LENT)
        return Lent(self._segment.rank, self._segment.birth, self._number, block.nbytes, digest, places)

    def _describe(self) -> tuple[About, int] | None:
        with self._lock:
            if self._lent is None:
                return None
            about = About(self._segment.birth, self._number, self._memory.number, self._lent.nbytes)
            return about, self._lent.export()

    def release(self) -> None:
        """Stop lending; a process that has mapped it keeps it."""
        with self._lock:
            if self._lent is not None:
                self._lent.close()
                self._lent = None

    # the newcomer

    def take(self) -> Outcome:
        """Map the block that the given state says it was lent in."""
        self.drop()
        try:
            lent = lent_in(self._segment.files.read_given())
            if lent is None:
                return Outcome.DONE  # the lender had no room for it
            return self._map(lent)
        except DeviceError:
            return Outcome.CANNOT
        except (FormatError, JobError, OSError):
            return Outcome.GONE  # of a lender that is dead by now

    def _map(self, lent: Lent) -> Outcome:
        lender = open_to_read(self._segment.run, lent.rank)
        process = lender.agent.worker
        gone = lender.birth != lent.birth
        found = None if gone else fetch(
            self._segment.files.folder, lent.rank, lambda: process.visible and process.exiting, LENT
        )  # fmt: skip
        if found is None:
            return Outcome.GONE
        about, file = found
        try:
            if (about.birth, about.generation) != (lent.birth, lent.number):
                return Outcome.GONE
            if (about.kind, about.nbytes) != (self._memory.number, lent.nbytes):
                return Outcome.CANNOT
            self._taken, self._from = self._memory.attach(file, about.nbytes), lent
        finally:
            os.close(file)
        return Outcome.DONE

    def borrowed(self, place: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> OnDevice:
        """An array of the state that was lent."""
        block, memory = self._taken, self._memory
        size = math.prod(shape) * dtype.itemsize
        if block is None or place + size > block.nbytes:
            raise DeviceError("the state that another worker lent in device memory was never mapped here")

        def fetched() -> npt.NDArray[Any]:
            out = np.empty(size, np.uint8)
            memory.download((block, place), out)
            memory.finish()
            return out.view(dtype).reshape(shape)

        def into(address: int) -> None:
            memory.store((block, place), address, size)
            memory.finish()

        return OnDevice(shape, dtype, fetched, into=into)

    def settle(self, digest: int) -> None:
        """What was lent has been copied: drop it; `DeviceError` if what arrived is not what the lender had."""
        lent = self._from
        self.drop()
        if lent is not None and lent.digest != digest:
            raise DeviceError(
                f"the state that worker {lent.rank} lent in device memory arrived with the digest {digest:012x}, not "
                f"{lent.digest:012x}; this worker exits, and the others continue"
            )

    def drop(self) -> None:
        """Unmap the state that was lent."""
        if self._taken is not None:
            self._taken.close()
        self._taken = self._from = None

    def close(self) -> None:
        """Give everything back."""
        if self._offer is not None:
            self._offer.close()
            self._offer = None
        self.release()
        self.drop()
