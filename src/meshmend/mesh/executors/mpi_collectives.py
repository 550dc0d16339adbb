"""Runs the schedule of any collective over MPI: ranks are chips, and each chunk goes to a neighbour as one message.

    gather = MeshCollective(group, mm.plan(mesh, collective="all_gather").schedule())
    everything = gather(mine)            # what goes in and what comes out: `meshmend.mesh.executors.collectives`

A rank keeps two orders of the table: that of the messages on each link, and that of what happens to each chunk here (it
is sent, or something lands on it). Whatever comes early waits for its turn. So every chunk has the same history as in
the reference, floats included, and because the table is one order in which everything can happen, nobody waits for
ever.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from meshmend.errors import PlanError
from meshmend.mesh.collectives.schedule import CollectiveSchedule
from meshmend.mesh.executors.base import require_proof
from meshmend.mesh.executors.mpi import WINDOW
from meshmend.mesh.executors.pieces import begin, cut, end, pieces_of
from meshmend.mesh.proof import Proof

TAG = 78
NAP = 0.0002
"""Seconds to sleep when nothing has come or left: others need the processor."""
Array = npt.NDArray[Any]


class _Link:
    """One link, one way: its transfers in order, and how many of them MPI has been given."""

    def __init__(self, other: int, transfers: list[int]) -> None:
        self.other, self.transfers, self.given = other, transfers, 0
        self.flying: deque[tuple[MPI.Request, Array]] = deque()

    @property
    def next(self) -> int | None:
        """The next transfer for MPI, if there is one and few enough are on their way."""
        if self.given == len(self.transfers) or len(self.flying) == WINDOW:
            return None
        return self.transfers[self.given]

    def done(self) -> Array | None:
        """What the oldest message on its way carried, once it has come or left."""
        if not self.flying or not self.flying[0][0].Test():
            return None
        return self.flying.popleft()[1]


class MeshCollective:
    """One collective for one group of ranks and one schedule."""

    def __init__(
        self,
        group: MPI.Comm,
        schedule: CollectiveSchedule,
        chips: Sequence[int] | None = None,
        proof: Proof | None = None,
    ) -> None:
        """`chips[rank]` is the chip that a rank of the group is, by default those alive in their order.

        Where no proof is given, every rank proves the schedule itself.
        """
        self.proof = require_proof(schedule, proof)
        self.schedule, self._group = schedule, group
        mesh, table = schedule.mesh, schedule.table
        places = [int(chip) for chip in (mesh.live if chips is None else chips)]
        if sorted(places) != mesh.live.tolist() or len(places) != group.Get_size():
            raise PlanError(
                f"a group of {group.Get_size()} ranks was given for the {len(mesh.live)} live chips of {mesh}: "
                "each live chip needs one rank"
            )
        here = places[group.Get_rank()]
        self._chip, self._pieces = int(mesh.place[here]), pieces_of(schedule)
        rank_of = {chip: rank for rank, chip in enumerate(places)}
        sends, lands = np.flatnonzero(table.sender == here), np.flatnonzero(table.receiver == here)
        self._chunk: dict[int, int] = {int(i): int(table.chunk[i]) for i in (*sends, *lands)}
        self._copy: dict[int, bool] = {int(i): bool(table.copy[i]) for i in lands}
        self._out = [
            (rank_of[int(c)], sends[table.receiver[sends] == c].tolist()) for c in _each(table.receiver[sends])
        ]
        self._in = [(rank_of[int(c)], lands[table.sender[lands] == c].tolist()) for c in _each(table.sender[lands])]
        arrive = table.arrive
        # What lands in a slot lands before that slot's chunks are taken, in the order of the reference.
        events = [(int(arrive[i]), 0, int(i)) for i in lands] + [(int(table.slot[i]), 1, int(i)) for i in sends]
        self._turns: dict[int, list[int]] = {}
        for _, _, transfer in sorted(events):
            self._turns.setdefault(self._chunk[transfer], []).append(transfer)

    def __call__(self, part: npt.ArrayLike) -> Array:
        """The output of this chip, given its input."""
        own = np.asarray(part)
        pieces = cut(self._pieces, own)
        held = begin(self._pieces, self._chip, pieces)
        if held.size:
            self._exchange(held)
        return end(self._pieces, self._chip, pieces, held, own.shape)

    def _exchange(self, held: Array) -> None:
        """All transfers of this chip, each in its turn."""
        turns = {chunk: deque(order) for chunk, order in self._turns.items()}
        out = [_Link(other, transfers) for other, transfers in self._out]
        incoming = [_Link(other, transfers) for other, transfers in self._in]
        came: dict[int, Array] = {}
        left = sum(map(len, turns.values()))
        while left or any(link.flying for link in out):
            before = left, len(came), sum(len(link.flying) for link in out)
            for link in incoming:
                landed = link.given - len(link.flying)
                while (values := link.done()) is not None:
                    came[link.transfers[landed]] = values
                    landed += 1
                while link.next is not None:
                    room = np.empty_like(held[0])
                    link.flying.append((self._group.Irecv([room.view(np.uint8), MPI.BYTE], link.other, TAG), room))
                    link.given += 1
            for chunk in {self._chunk[transfer] for transfer in came}:
                order = turns[chunk]
                while order and order[0] in came:
                    transfer = order.popleft()
                    values, left = came.pop(transfer), left - 1
                    held[chunk] = values if self._copy[transfer] else held[chunk] + values
            for link in out:
                while link.done() is not None:
                    pass
                while (goes := link.next) is not None and turns[self._chunk[goes]][0] == goes:
                    values = held[self._chunk[goes]].copy()  # the chunk may change before MPI has sent it
                    link.flying.append((self._group.Isend([values.view(np.uint8), MPI.BYTE], link.other, TAG), values))
                    link.given += 1
                    turns[self._chunk[goes]].popleft()
                    left -= 1
            if before == (left, len(came), sum(len(link.flying) for link in out)):
                time.sleep(NAP)


def _each(chips: Array) -> list[int]:
    return [int(chip) for chip in np.unique(chips)]
