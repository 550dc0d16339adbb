"""What a worker of a sharded job shares with its courier besides messages: its weights, and digests of slices.

    │ weights │ where each slice begins │ digests of the slices held here │ digests that all holders agreed on │
    │ sums of squares of the slices held here │ of all slices │

The worker writes all of it but the tables of all slices, and the courier these and the weights of slices that others
hold: while a round is finished, and its worker waits. Copies of slices go through files of
their own, one for each slice.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshmend.errors import SegmentGone
from meshmend.job.shm.files import RankFiles
from meshmend.job.shm.records import WorkerRecord

SUFFIX = "slices"
WORD = 8
Sums = npt.NDArray[np.float64]
Table = npt.NDArray[np.uint64]
"""For each slice, the digest of its weights, and of what the optimizer remembers of them."""


class SliceMemory:
    """The mapped file of one rank."""

    def __init__(self, mapped: mmap.mmap, weights: int, slices: int, measures: int, squares: int) -> None:
        flat = np.frombuffer(mapped, np.uint64)
        words = -(-weights * 4 // WORD)
        self.weights = flat[:words].view(np.float32)[:weights]
        """All of them, as they are after the last round."""
        rest = flat[words:]
        self.bounds = rest[: slices + 1].view(np.int64)
        """Where each slice begins in the weights, and where the last one ends."""
        tables = rest[slices + 1 : 5 * slices + 1].reshape(2, slices, 2)
        self.digests: Table = tables[0]
        self.agreed: Table = tables[1]
        sums = rest[5 * slices + 1 :].view(np.float64).reshape(2, measures, squares)
        self.measured: Sums = sums[0]
        """By stage, the sums of squares of the slices held here."""
        self.squares: Sums = sums[1]
        """The same of all slices."""

    @classmethod
    def make(cls, files: RankFiles, bounds: Sequence[int], measures: int = 0, squares: int = 0) -> SliceMemory:
        """In the worker, when it knows its weights."""
        weights, slices = bounds[-1], len(bounds) - 1
        files.path(SUFFIX).unlink(missing_ok=True)  # of the job before; who has it mapped keeps it
        size = _nbytes(weights, slices, measures, squares)
        file = files.reserve(SUFFIX, size)
        try:
            made = cls(mmap.mmap(file, size), weights, slices, measures, squares)
        finally:
            os.close(file)
        made.bounds[:] = bounds
        return made

    @classmethod
    def open(cls, files: RankFiles, worker: WorkerRecord) -> SliceMemory:
        """In its courier, or in a neighbour's."""
        numbers = worker.weights, worker.slices, worker.measures, worker.squares
        size = _nbytes(*numbers)
        file = files.open(SUFFIX, os.O_RDWR)
        try:
            if os.fstat(file).st_size != size:
                raise SegmentGone(f"the slices of rank {files.rank} are those of another worker")
            return cls(mmap.mmap(file, size), *numbers)
        finally:
            os.close(file)


def _nbytes(weights: int, slices: int, measures: int, squares: int) -> int:
    return WORD * (-(-weights * 4 // WORD) + slices + 1 + 4 * slices + 2 * measures * squares)
