"""Sums of members on one host: they read each other's shared memory; MPI only synchronises and reports deaths.

    part 0 │ a │ b │ c │ d │          total 0 │ A │   │   │   │          total 0 │ A │ B │ C │ D │
    part 1 │ a │ b │ c │ d │   all    total 1 │   │ B │   │   │   all    total 1 │ A │ B │ C │ D │
    part 2 │ a │ b │ c │ d │  ─────►  total 2 │   │   │ C │   │  ─────►  total 2 │ A │ B │ C │ D │
    part 3 │ a │ b │ c │ d │   have   total 3 │   │   │   │ D │   have   total 3 │ A │ B │ C │ D │
                              parts                              added

MPI does the same with messages; here there is nothing to send. Every member writes only to its own memory, so any
member may be killed at any time: it leaves its part and its total intact, and a member that
has passed the second barrier can read everything it needs, since all had added by then. Parts stay as they are until
the next question, which comes after the second barrier, or after a repair, which no survivor enters while it reads.
Totals stay for two rounds, as always.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from meshmend.job.shm.records import Way
from meshmend.job.transport.base import Buffers, Group, Transport, patient, slices
from meshmend.job.transport.crew import Crew


class SharedMemory(Transport):
    """The members of a group whose memory is all on this host."""

    way = Way.SHARED

    def __init__(
        self,
        buffers: Sequence[Buffers],
        position: int,
        barrier: Callable[[], None],
        before: Callable[[str], None] = lambda _: None,
        crew: Crew | None = None,
    ) -> None:
        self._buffers, self._position = buffers, position
        self._barrier, self._before = barrier, before
        self._own = buffers[position]
        self._crew = Crew(len(buffers)) if crew is None else crew
        self._slices = slices(0, self._own.wire.size, len(buffers))

    @classmethod
    def make(cls, group: Group) -> Transport | None:
        """For members of one host, unless sums were asked to go over the links of a mesh."""
        if group.port.mesh is not None or len({member.host for member in group.members}) > 1:
            return None

        def barrier() -> None:
            patient(group.comm.Ibarrier())

        return cls(group.port.neighbours(group.members), group.position, barrier, group.port.before)

    def reduce_scatter(self, round: int) -> None:
        """When all members have their parts: add up this member's slice."""
        self._barrier()
        self._before("add")
        self._add(round, self._slices[self._position])

    def _add(self, round: int, mine: slice) -> None:
        wire, total = self._own.wire, self._own.total(round)
        parts = [buffers.part for buffers in self._buffers]

        def add(one: slice) -> None:
            wire.combine([part[one] for part in parts], total[one], one.start)

        self._crew.divide(add, mine, total.itemsize)

    def all_gather(self, round: int) -> None:
        """When all members have added: copy their slices."""
        self._barrier()
        self._before("take")
        for position, theirs in enumerate(self._slices):
            if position != self._position:
                self._copy(round, position, theirs)

    def _copy(self, round: int, position: int, theirs: slice) -> None:
        total, other = self._own.total(round), self._buffers[position].total(round)

        def copy(one: slice) -> None:
            total[one] = other[one]

        self._crew.divide(copy, theirs, total.itemsize)


def host(home: Path) -> int:
    """Return a number for the memory in a folder: another machine's differs, and so does another container's.

    Two hosts with different names but shared memory (those of our tests) stay two.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    return int(boot[:12], 16) << 15 ^ os.stat(home).st_dev ^ zlib.crc32(os.uname().nodename.encode())
