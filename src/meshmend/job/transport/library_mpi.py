"""Sums by the MPI library: works between any hosts.

MPI adds up plain numbers itself (`MPI_Allreduce`). Numbers that a reduction packs in its own way (bf16) it cannot add:
of these, every member receives its slice from all others, adds it up, and sends the sum to all.

Everything goes in pieces, from a send buffer that nothing else writes to, into a separate buffer: each of these rules
comes from a crash of a survivor (see the ULFM notes of Open MPI 5).
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from meshmend.job.shm.records import Way
from meshmend.job.transport.base import PIECE, Group, Numbers, Port, Transport, patient, slices


class LibraryMpi(Transport):
    """A group of any members."""

    way = Way.MPI
    piece = PIECE
    piecewise = True

    def __init__(self, comm: MPI.Comm, port: Port) -> None:
        self._comm, self._port = comm, port
        self._here, self._members = comm.Get_rank(), comm.Get_size()
        self._room: Numbers | None = None
        """Where slices of the others arrive: private to this group, because late messages may still arrive for it."""

    @classmethod
    def make(cls, group: Group) -> Transport | None:
        """For every group."""
        return cls(group.comm, group.port)

    def all_reduce(self, round: int) -> None:
        """Let MPI add up what it can; piece by piece."""
        part, total = self._port.part, self._port.total(round)
        step, (head, used) = self._step(part), self._extent()
        ranges = [slice(begin, min(begin + step, used)) for begin in range(head, used, step)]
        if used < len(part):
            ranges.append(slice(self._port.tail, len(part)))
        for number, one in enumerate(ranges):
            self._port.complete(one.stop)  # a device may still copy the rest
            if number == 0:  # the members that come first wait for the last one here, and only here
                patient(self._comm.Iallreduce(part[one], total[one], MPI.SUM))
            else:
                self._comm.Allreduce(part[one], total[one], MPI.SUM)
        for begin in range(0, head, step):
            piece = slices(begin, min(begin + step, head), self._members)
            self._scatter(part, total, piece)
            self._gather(total, piece)

    def _extent(self) -> tuple[int, int]:
        """The head of the current sum, and where its numbers end.

        Where steps have several sums, members may be at different ones if the script is wrong: all take the largest, so
        that all receive all footers, which tell them so.
        """
        wire = self._port.wire
        if not self._port.several:
            return wire.head, wire.size
        own, most = np.array([wire.head, self._port.used], np.int64), np.empty(2, np.int64)
        patient(self._comm.Iallreduce(own, most, MPI.MAX))
        return int(most[0]), int(most[1])

    def reduce_scatter(self, round: int) -> None:
        """Every member receives its slice from all others and adds it up."""
        self._port.complete(self._port.wire.size)
        patient(self._comm.Ibarrier())
        part, total = self._port.part, self._port.total(round)
        for piece in self._pieces(part):
            self._scatter(part, total, piece)

    def all_gather(self, round: int) -> None:
        """Every member sends its sum to all others."""
        patient(self._comm.Ibarrier())
        total = self._port.total(round)
        for piece in self._pieces(total):
            self._gather(total, piece)

    def _step(self, message: Numbers) -> int:
        return max(1, self.piece // message.itemsize)

    def _pieces(self, message: Numbers) -> list[list[slice]]:
        """Sum a small range of every member's slice at a time."""
        whole = slices(0, len(message), self._members)
        longest = max(one.stop - one.start for one in whole)
        step = max(1, self._step(message) // self._members)
        return [
            [slice(min(one.start + k, one.stop), min(one.start + k + step, one.stop)) for one in whole]
            for k in range(0, longest, step)
        ]

    def _scatter(self, part: Numbers, total: Numbers, piece: list[slice]) -> None:
        """Add up this member's slice of a piece; `piece` holds the slice of every member."""
        sizes, places = [one.stop - one.start for one in piece], [one.start for one in piece]
        mine = piece[self._here]
        size = sizes[self._here]
        if self._room is None:
            self._room = np.empty(self._step(part) + self._members, part.dtype)
        theirs = self._room[: self._members * size].reshape(self._members, size)
        self._comm.Alltoallv((part, (sizes, places)), (theirs, [size] * self._members))
        self._port.wire.combine(list(theirs), total[mine], mine.start)

    def _gather(self, total: Numbers, piece: list[slice]) -> None:
        sizes, places = [one.stop - one.start for one in piece], [one.start for one in piece]
        self._comm.Allgatherv(MPI.IN_PLACE, (total, (sizes, places)))
