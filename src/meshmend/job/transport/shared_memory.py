"""Sums of members on one host: they read each other's shared memory; MPI only synchronises and reports deaths.

    part 0 │ a │ b │ c │ d │          total 0 │ A │   │   │   │          total 0 │ A │ B │ C │ D │
    part 1 │ a │ b │ c │ d │   all    total 1 │   │ B │   │   │   all    total 1 │ A │ B │ C │ D │
    part 2 │ a │ b │ c │ d │  ─────►  total 2 │   │   │ C │   │  ─────►  total 2 │ A │ B │ C │ D │
    part 3 │ a │ b │ c │ d │   have   total 3 │   │   │   │ D │   have   total 3 │ A │ B │ C │ D │
                              parts                              added

Large totals stay as they are after the first half: workers read the slices where they lie (`shm/sliced.py`). Small ones
are copied, and so are those that a device takes from the buffer.

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
from functools import partial
from pathlib import Path

from meshmend.job.shm.records import MOST_MEMBERS, Outcome, Task, Way, Where
from meshmend.job.shm.sliced import slices_of_pages
from meshmend.job.transport.base import Buffers, Group, Port, Transport, least, patient, slices
from meshmend.job.transport.crew import Crew

LARGE = 1 << 18
"""Bytes of a message whose slices are read where they lie: to copy fewer takes no longer than to map them."""


Barrier = Callable[[Callable[[], bool], Callable[[float], None] | None], None]
"""Waits for all members; see `patient`."""


class SharedMemory(Transport):
    """The members of a group whose memory is all on this host."""

    way = Way.SHARED
    large = LARGE

    def __init__(
        self,
        buffers: Sequence[Buffers],
        position: int,
        barrier: Barrier,
        before: Callable[[str], None] = lambda _: None,
        crew: Crew | None = None,
        room: Callable[[], slice | None] = lambda: None,
        tail: int | None = None,
        begun: Callable[[int], bool] = lambda _: False,
        nap: Callable[[float], None] | None = None,
    ) -> None:
        """`begun` says whether all have come to a round's sum; `nap` sleeps until then.

        `tail`: totals stay in slices, and here the footer begins, which is in no slice.
        """
        self._buffers, self._position, self._tail = buffers, position, tail
        self._room = room
        """Which numbers of a message the current sum has no use for, if any."""
        self._barrier, self._before, self._begun, self._nap = barrier, before, begun, nap
        self._own = buffers[position]
        self._crew = Crew(len(buffers)) if crew is None else crew
        wire, members = self._own.wire, len(buffers)
        self._slices = slices(0, wire.size, members) if tail is None else slices_of_pages(tail, members, wire)

    @classmethod
    def make(cls, group: Group) -> Transport | None:
        """For members of one host, unless sums were asked to go over the links of a mesh."""
        if group.port.mesh is not None or len({member.host for member in group.members}) > 1:
            return None

        def barrier(soon: Callable[[], bool], nap: Callable[[float], None] | None) -> None:
            patient(group.comm.Ibarrier(), soon, nap)

        port = group.port
        buffers = port.neighbours(group.members)
        tail = port.tail if cls._stays_sliced(group) else None
        room = partial(_room, port)
        return cls(buffers, group.position, barrier, port.before, None, room, tail, port.begun, port.nap)

    @property
    def sliced(self) -> bool:
        """Totals of the largest sum stay in slices; those of a smaller one are divided in another way."""
        return self._tail is not None and self._room() is None

    @property
    def where(self) -> Where:
        """Workers read slices where they lie."""
        return Where.SLICES if self.sliced else Where.BUFFER

    @classmethod
    def _stays_sliced(cls, group: Group) -> bool:
        """Whether totals stay in slices: all workers have to see those of the others."""
        port, members = group.port, group.members
        if not 1 < len(members) <= MOST_MEMBERS or port.wire.nbytes < cls.large:
            return False
        return least(group.comm, port.use_worker(Task.OPEN, 0, group.look, members)) is Outcome.DONE

    def reduce_scatter(self, round: int) -> None:
        """When all members have their parts: add up this member's slice.

        Of a message that a sum does not fill, everybody adds up the footer, which is small: then all see the same one
        even if they took different sums for the current one. What is in no slice is added up by everybody too.
        """
        self._meet(round)
        self._before("add")
        shares, room = self._shares(), self._room()
        self._add(round, shares[self._position])
        rest = slice(shares[-1].stop if room is None else room.stop, self._own.wire.size)
        if rest.start < rest.stop:
            self._add(round, rest)

    def _meet(self, round: int) -> None:
        """Wait until all have their parts."""
        self._barrier(partial(self._begun, round), self._nap)

    def _shares(self) -> list[slice]:
        """The slices of all members."""
        room = self._room()
        return self._slices if room is None else slices(0, room.start, len(self._buffers))

    def _add(self, round: int, mine: slice) -> None:
        wire, total = self._own.wire, self._own.total(round)
        parts = [buffers.part for buffers in self._buffers]

        def add(one: slice) -> None:
            wire.combine([part[one] for part in parts], total[one], one.start)

        self._crew.divide(add, mine, total.itemsize)

    def all_gather(self, round: int) -> None:
        """When all members have added: copy their slices."""
        self._barrier(lambda: True, None)  # the others are adding too, and no worker computes
        self._before("take")
        if self.sliced:
            return
        for position, theirs in enumerate(self._shares()):
            if position != self._position:
                self._copy(round, position, theirs)

    def _copy(self, round: int, position: int, theirs: slice) -> None:
        total, other = self._own.total(round), self._buffers[position].total(round)

        def copy(one: slice) -> None:
            total[one] = other[one]

        self._crew.divide(copy, theirs, total.itemsize)


def _room(port: Port) -> slice | None:
    return slice(port.used, port.tail) if port.used < port.tail else None


def host(home: Path) -> int:
    """Return a number for the memory in a folder: another machine's differs, and so does another container's.

    Two hosts with different names but shared memory (those of our tests) stay two.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    return int(boot[:12], 16) << 15 ^ os.stat(home).st_dev ^ zlib.crc32(os.uname().nodename.encode())
