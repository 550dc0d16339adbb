"""Where a worker keeps its slices of the tables, and how it reads those of other workers of its host.

Each copy of a slice is a file in shared memory, RANK.rows-17: whoever holds it writes, everybody reads.

    │ version │ birth of the rank's memory │ … │ rows, with what the optimizer remembers of each │

A version is the step before which these rows are; `BUSY` while they change. A reader copies the rows it wants between
two looks at the version. Rows change only with a total, and a total needs the part of every member: so nobody that is
still a member reads rows that the next update changes.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError
from meshmend.job.embeddings.shape import Floats, Ids
from meshmend.job.shm.files import RankFiles
from meshmend.job.shm.segment import Segment, open_to_read

WORDS = 8
BUSY, GONE = -1, -2
HEAD = 8 * WORDS


@dataclass
class Copy:
    """A copy of a slice."""

    words: npt.NDArray[np.int64]
    rows: Floats

    @classmethod
    def of(cls, buffer: Any, width: int) -> Copy:
        """A copy in a buffer."""
        return cls(
            np.frombuffer(buffer, np.int64, WORDS), np.frombuffer(buffer, np.float32, -1, HEAD).reshape(-1, width)
        )

    @property
    def version(self) -> int:
        """The step before which it is."""
        return int(self.words[0])

    @version.setter
    def version(self, value: int) -> None:
        self.words[0] = value

    @property
    def birth(self) -> int:
        """Of the memory of its rank."""
        return int(self.words[1])

    def read(self, version: int, places: Ids | slice) -> Floats | None:
        """These rows as they are before a step; None where they are not like that, or change meanwhile."""
        if self.version != version:
            return None
        found = np.array(self.rows[places])
        return found if self.version == version else None


class Shelf:
    """The copies that this worker has; in its own memory where it is alone."""

    def __init__(self, width: int, files: RankFiles | None = None, birth: int = 0) -> None:
        self.copies: dict[int, Copy] = {}
        self._width, self._files, self._birth = width, files, birth

    @property
    def nbytes(self) -> int:
        """Bytes of all copies."""
        return sum(copy.rows.nbytes for copy in self.copies.values())

    def put(self, number: int, rows: Floats, version: int) -> None:
        """Have a copy; others see all of it or none."""
        size = HEAD + rows.nbytes
        buffer: Any = bytearray(size)
        suffix = f"rows-{number}"
        if self._files is not None:
            file = self._files.reserve(f"{suffix}.new", size)
            try:
                buffer = mmap.mmap(file, size)
            finally:
                os.close(file)
        copy = Copy.of(buffer, self._width)
        copy.rows[:] = rows
        copy.words[:2] = version, self._birth
        if self._files is not None:
            os.replace(self._files.path(f"{suffix}.new"), self._files.path(suffix))
        self.copies[number] = copy

    def read(self, number: int, version: int, places: Ids | slice) -> Floats | None:
        """These rows of a slice as they are before a step, for other hosts; None where they are not here like that."""
        copy = self.copies.get(number)
        return None if copy is None else copy.read(version, places)

    def keep(self, slices: frozenset[int]) -> None:
        """Drop all others."""
        for number in self.copies.keys() - slices:
            self.copies.pop(number).version = GONE  # who has it mapped must not take it for the next one
            if self._files is not None:
                self._files.path(f"rows-{number}").unlink(missing_ok=True)


class OtherShelves:
    """The copies of other workers of this host."""

    def __init__(self, run: str, width: int) -> None:
        self._run, self._width = run, width
        self._segments: dict[int, Segment] = {}
        self._copies: dict[tuple[int, int], Copy] = {}

    def look(self, rank: int) -> Segment | None:
        """The memory of a rank whose worker is alive."""
        one = self._segments.get(rank)
        if one is None or one.agent.worker.exiting:
            self._forget(rank)
            try:
                one = open_to_read(self._run, rank)
            except (JobError, OSError):
                return None  # it is dead, and its memory is gone
            if one.agent.worker.exiting:
                return None
            self._segments[rank] = one
        return one

    def read(self, segment: Segment, number: int, version: int, places: Ids | slice) -> Floats | None:
        """These rows of a slice as they are before a step; None where that rank does not have them."""
        key = segment.rank, number
        copy = self._copies.get(key)
        if copy is None or copy.version != version:
            self._copies.pop(key, None)
            copy = self._mapped(segment, number)
            if copy is None:
                return None
            self._copies[key] = copy
        return copy.read(version, places)

    def _mapped(self, segment: Segment, number: int) -> Copy | None:
        try:
            file = segment.files.open(f"rows-{number}", os.O_RDONLY)
        except (JobError, OSError):
            return None
        try:
            copy = Copy.of(mmap.mmap(file, 0, access=mmap.ACCESS_READ), self._width)
        finally:
            os.close(file)
        return copy if copy.birth == segment.birth else None

    def _forget(self, rank: int) -> None:
        self._segments.pop(rank, None)
        for key in [key for key in self._copies if key[0] == rank]:
            del self._copies[key]
