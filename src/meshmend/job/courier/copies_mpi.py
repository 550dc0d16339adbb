"""Copies of slices from holders to new ones: all of a round at once, while the workers compute.

One after another they would take the members through as many meetings as there are slices, and on a busy machine each
meeting waits until both couriers have a processor. So everything is sent and received at the same time: for each
pair of members how long the copies are, which also says that they are made, and then the copies, in pieces. On one host
a copy is a file that the new holder takes over (`shm/copies.py`), and nothing more is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from meshmend.job.sharding import Fill
from meshmend.job.transport.base import PIECE, Hello, Request, patient

Bytes = npt.NDArray[np.uint8]


class Together:
    """Several requests as one; it also keeps their buffers."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._open = list(requests)

    def Test(self) -> bool:  # noqa: N802
        """Whether all are complete."""
        self._open = [request for request in self._open if not request.Test()]
        return not self._open


class Copies:
    """The copies that go between the members of one group; it outlives the group, since they may arrive late."""

    def __init__(self, comm: MPI.Comm, members: Mapping[int, Hello]) -> None:
        self.comm, self._members = comm, members
        self._places = {rank: place for place, rank in enumerate(members)}
        self._sent, self._coming = Together(()), Together(())

    def swap(self, mine: int, fills: Sequence[Fill], given: Mapping[int, Bytes]) -> dict[int, Bytes | Hello]:
        """Send what this rank gives; what it gets, by slice, or the member of this host that has it.

        Every member has the same `fills`.
        """
        here = self._members[mine].host
        near = {rank for rank, member in self._members.items() if member.host == here}
        to, from_ = _by(fills, "source", "target", mine), _by(fills, "target", "source", mine)
        sizes = {rank: np.zeros(len(slices), np.int64) for rank, slices in from_.items()}
        self._coming = Together([self.comm.Irecv(size, self._places[rank]) for rank, size in sizes.items()])
        lengths = {rank: np.array([len(given[one]) for one in slices], np.int64) for rank, slices in to.items()}
        self._sent = Together(
            [
                self.comm.Isend(piece, self._places[rank])
                for rank, slices in to.items()
                for piece in [
                    lengths[rank],
                    *(piece for one in slices if rank not in near for piece in _pieces(given[one])),
                ]
            ]
        )
        patient(self._coming)
        found = {rank: [np.empty(size, np.uint8) for size in sizes[rank].tolist()] for rank in from_.keys() - near}
        self._coming = Together(
            [
                self.comm.Irecv(piece, self._places[rank])
                for rank, copies in found.items()
                for copy in copies
                for piece in _pieces(copy)
            ]
        )
        patient(self._coming)
        patient(self._sent)
        got: dict[int, Bytes | Hello] = {}
        for rank, slices in from_.items():
            got |= (
                dict.fromkeys(slices, self._members[rank])
                if rank in near
                else dict(zip(slices, found[rank], strict=True))
            )
        return got


def _by(fills: Sequence[Fill], here: str, there: str, rank: int) -> dict[int, list[int]]:
    """The slices of the fills whose one end is this rank, by the rank at the other end."""
    found: dict[int, list[int]] = {}
    for fill in fills:
        if getattr(fill, here) == rank:
            found.setdefault(getattr(fill, there), []).append(fill.slice)
    return found


def _pieces(data: Bytes) -> list[Bytes]:
    return [data[begin : begin + PIECE] for begin in range(0, len(data), PIECE)]
