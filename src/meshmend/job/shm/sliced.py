"""Totals in slices: each courier of a host adds up one, in its own worker's buffer, and all workers read them there.

    total of worker 0   │ A │   │   │   │ rest │
    total of worker 1   │   │ B │   │   │ rest │       as any of these workers maps it
    total of worker 2   │   │   │ C │   │ rest │   ─►  │ A │ B │ C │ D │ rest │
    total of worker 3   │   │   │   │ D │ rest │

Nothing is copied: slices are whole pages, which a worker maps in a row when the group is formed (`SlicedTotals.open`).
What is mapped stays, whoever dies. What is left over, the footer with it, every courier adds up for itself.

A slice stays until the total of the round after next is made, by which time every member has read this one. Only a
worker that the others believe dead can be too late. So a courier marks a total before it writes to it (`marks.py`), and
a worker looks at the marks after it has read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshmend.base.mapped import PAGE, Stretch, map_stretches
from meshmend.errors import JobError
from meshmend.job.reduction.base import WireFormat, slices
from meshmend.job.shm.buffers import TOTALS, place_of_total, stride
from meshmend.job.shm.marks import mark, membership, of_total_in_buffer, summed_in, where_is
from meshmend.job.shm.records import Outcome, Where
from meshmend.job.shm.segment import Segment, WorkerSegment, open_to_read

Who = tuple[int, int]
"""(rank, birth) of a member."""


class Overtaken(Exception):
    """The others have continued without this worker, and what it has read may be anything."""


def slices_of_pages(numbers: int, members: int, wire: WireFormat) -> list[slice]:
    """The slices of the first numbers of a message, one for each member; what is left over does not fill a page."""
    each = PAGE // wire.kind.dtype.itemsize
    return [slice(each * one.start, each * one.stop) for one in slices(0, numbers // each, members)]


class Mapped(NamedTuple):
    """The totals of a group."""

    members: Sequence[Segment]
    membership: int
    """The number of this group (`marks.py`)."""
    rows: Sequence[npt.NDArray[Any]]
    """The totals of even and odd rounds."""

    def overtaken(self, round: int) -> bool:
        """Whether a member has begun to put something else in the place of this round's total."""
        ours = mark(round, self.membership)
        return any(of_total_in_buffer(one.courier, round) > ours for one in self.members)


class SlicedTotals:
    """One worker's view of them. The courier's requests come in a thread of their own; the main one reads totals."""

    def __init__(self, segment: WorkerSegment, footer: int) -> None:
        self._segment, self._footer = segment, footer
        self._lock = threading.Lock()
        self._now: Mapped | None = None
        """The group that has met last."""
        self._made: dict[int, Mapped] = {}
        """How the last totals were made that the main thread has read: another group may have met since."""

    def open(self, members: Sequence[Who]) -> Outcome:
        """Map the totals of all members of a new group."""
        own, number = self._segment, membership(self._segment.courier)
        with ExitStack() as stack:
            files: list[int] = []
            try:
                found = [own if rank == own.rank else self._look_at(rank) for rank, _ in members]
                for one in found:
                    files.append(one.buffers.open(os.O_RDONLY))
                    stack.callback(os.close, files[-1])
                # Looked at last: the memory of a worker that dies is soon that of the next one.
                if [(rank, self._look_at(rank).birth) for rank, _ in members] != list(members):
                    return Outcome.GONE
                rows = [self._row(files, found.index(own), round) for round in range(TOTALS)]
            except (JobError, FileNotFoundError):
                return Outcome.GONE
            except OSError:  # too many open files or mappings, or no address space: totals can do without
                return Outcome.CANNOT
        with self._lock:
            self._now = Mapped(found, number, rows)
        return Outcome.DONE

    def _look_at(self, rank: int) -> Segment:
        """What a rank of this host has now."""
        return open_to_read(self._segment.run, rank, self._segment.files.folder)

    def _row(self, files: Sequence[int], own: int, round: int) -> npt.NDArray[Any]:
        wire = self._segment.buffers.wire
        begin, size = place_of_total(round, wire), wire.kind.dtype.itemsize
        cut = slices_of_pages(wire.size - self._footer, len(files), wire)
        found = [
            Stretch(file, begin + size * one.start, size * (one.stop - one.start))
            for file, one in zip(files, cut, strict=True)
            if one.stop > one.start
        ]
        rest = size * cut[-1].stop
        found.append(Stretch(files[own], begin + rest, stride(wire) - rest))
        return map_stretches(found).view(wire.kind.dtype)[: wire.size]

    def has(self, round: int) -> bool:
        """Whether the total of this round, which is done, is in slices."""
        return where_is(self._segment.courier, round) is Where.SLICES

    def total(self, round: int) -> npt.NDArray[Any]:
        """That total, which the main thread reads now; see `check`."""
        with self._lock:
            made = self._how(round)
            self._made = {number: before for number, before in self._made.items() if number == round - 1}
            self._made[round] = made
            return made.rows[round % TOTALS]

    def check(self, round: int) -> None:
        """What was read of that total was still there; or `Overtaken`."""
        if self._made[round].overtaken(round):
            raise Overtaken

    def export(self, round: int) -> None:
        """Have a total in one piece in this worker's own buffer, for a member that lacks it; or `Overtaken`.

        A total of the buffers before these was no sum: all that counts of it, the footer, is in one piece.
        """
        if round < self._segment.worker.since:
            return
        with self._lock:
            made = self._how(round)
            np.copyto(self._segment.buffers.total(round), made.rows[round % TOTALS])
            if made.overtaken(round):
                raise Overtaken

    def _how(self, round: int) -> Mapped:
        """How the total of a round is made: another group meets only after this one's has been taken."""
        made = self._made.get(round, self._now)
        assert made is not None, "a group maps its totals before it makes one"
        return made

    def release(self) -> None:
        """A total has come in one piece, so nobody lacks an earlier one: give back what a former group has mapped.

        The memory of the dead is free only when nobody has it mapped; the present group may leave others in slices.
        """
        with self._lock:
            self._made = {}
            if self._now is not None and self._now.membership != summed_in(self._segment.courier):
                self._now = None

    def close(self) -> None:
        """The job is over."""
        with self._lock:
            self._now, self._made = None, {}
