"""Sums of members on one host whose gradients come from devices: piece by piece, so that copies and sums overlap.

As `shared_memory.py`, with a message cut into pieces. A worker answers while its device still copies the part down, and
says how far that is (`copied`); its courier says how far the total is (`gathered`), and the worker's device copies that
up at the same time:

    device 0 → part 0   │ 1 │ 2 │ 3 │ 4 │
    device 1 → part 1   │ 1 │ 2 │ 3 │ 4 │
    couriers add            │ 1 │ 2 │ 3 │ 4 │
    … and gather                │ 1 │ 2 │ 3 │ 4 │
    totals → devices                │ 1 │ 2 │ 3 │ 4 │

Any process may be killed at the same moments: a worker that dies while its part is copied takes its courier with it,
and no member passes that piece's barrier. What a device has copied of an abandoned total is never used, since every
attempt at a total has its own number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from meshmend.base.clocks import PEER_POLL
from meshmend.job.transport.base import Buffers, Group, Port, Request, Transport, patient, slices
from meshmend.job.transport.crew import Crew
from meshmend.job.transport.shared_memory import SharedMemory

PIECE = 1 << 25
"""Bytes of a piece: long enough that what is done for each one does not count."""


class Pipeline(SharedMemory):
    """The members of a group whose memory is all on this host, and whose states are on devices."""

    piece = PIECE
    piecewise = True

    def __init__(
        self,
        buffers: Sequence[Buffers],
        position: int,
        begin: Callable[[], Request],
        port: Port,
        look: Callable[[], None],
        crew: Crew,
    ) -> None:
        def barrier(soon: Callable[[], bool], nap: Callable[[float], None] | None) -> None:
            patient(begin(), soon, nap)

        super().__init__(buffers, position, barrier, port.before, crew, begun=port.begun, nap=port.nap)
        self._begin, self._port, self._look = begin, port, look
        self._added: Request | None = None
        """The barrier behind the last piece; kept, since something late may still arrive for it."""
        self._busy = 0.0
        size, step = self._own.wire.size, self.piece // self._own.wire.kind.dtype.itemsize
        self._pieces = [slice(at, min(at + step, size)) for at in range(0, size, step)]

    @classmethod
    def make(cls, group: Group) -> Transport | None:
        """For large messages of members of one host that all have their states on devices."""
        members, port = group.members, group.port
        if port.mesh is not None or len({member.host for member in members}) > 1:
            return None
        if not all(member.layout & 1 for member in members) or port.wire.nbytes < 2 * cls.piece:
            return None
        buffers, comm = port.neighbours(members), group.comm
        return cls(buffers, group.position, lambda: _barrier(comm), port, group.look, Crew(len(members)))

    def reduce_scatter(self, round: int) -> None:
        """Do all of it in one call."""
        self._await(self._own.wire.size)
        super().reduce_scatter(round)

    def all_reduce(self, round: int) -> None:
        """Add up piece after piece; while others still add one, the next one is added."""
        self._meet(round)
        self._before("add")
        self._busy = 0.0
        before: slice | None = None
        for piece in self._pieces:
            self._await(piece.stop)
            began = time.perf_counter()
            self._add(round, slices(piece.start, piece.stop, len(self._buffers))[self._position])
            self._busy += time.perf_counter() - began
            self._wait()
            self._added = self._begin()
            if before is not None:
                self._gather(round, before)
            before = piece
        self._wait()
        if before is not None:
            self._gather(round, before)
        self._port.spent(self._busy)

    def _wait(self) -> None:
        """There is one barrier at a time."""
        if self._added is not None:
            patient(self._added)
            self._added = None

    def _gather(self, round: int, piece: slice) -> None:
        """Copy the others' slices of a piece that all members have added."""
        if piece.start == 0:
            self._before("take")
        began = time.perf_counter()
        for position, theirs in enumerate(slices(piece.start, piece.stop, len(self._buffers))):
            if position != self._position:
                self._copy(round, position, theirs)
        self._busy += time.perf_counter() - began
        self._port.gathered(piece.stop)

    def _await(self, numbers: int) -> None:
        """Wait until this many numbers of all parts have arrived."""
        self._port.complete(numbers, self._look)
        while not all(buffers.has(numbers) for buffers in self._buffers):
            self._look()
            time.sleep(PEER_POLL / 10)


def _barrier(comm: Any) -> Request:
    found: Request = comm.Ibarrier()
    return found
