"""One chip's share of a table of transfers over MPI: each in its turn, whatever is sent and whatever it lands on.

A rank keeps two orders of the table: that of the messages on each link, and that of what happens to each chunk here (it
is sent, or something lands on it). Whatever comes early waits for its turn. So every chunk has the same history as in
the reference, floats included, and because the table is one order in which everything can happen, nobody waits for
ever.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from meshmend.errors import PlanError
from meshmend.mesh.executors.mpi import WINDOW
from meshmend.mesh.schedule import Schedule

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


class Turns:
    """The transfers that one rank takes part in."""

    def __init__(self, group: MPI.Comm, table: Schedule, chips: Sequence[int] | None, tag: int) -> None:
        """`chips[rank]` is the chip that a rank of the group is, by default those alive in their order."""
        mesh = table.mesh
        places = [int(chip) for chip in (mesh.live if chips is None else chips)]
        if sorted(places) != mesh.live.tolist() or len(places) != group.Get_size():
            raise PlanError(
                f"a group of {group.Get_size()} ranks was given for the {len(mesh.live)} live chips of {mesh}: "
                "each live chip needs one rank"
            )
        self._group, self._tag = group, tag
        here = places[group.Get_rank()]
        self.chip = int(mesh.place[here])
        """This rank's place among the live chips."""
        rank_of = {chip: rank for rank, chip in enumerate(places)}
        sends, lands = np.flatnonzero(table.sender == here), np.flatnonzero(table.receiver == here)
        self._chunk: dict[int, int] = {int(i): int(table.chunk[i]) for i in (*sends, *lands)}
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

    def run(self, like: Array, take: Callable[[int], Array], land: Callable[[int, Array], None]) -> None:
        """All transfers of this chip, by their numbers in the table, each with an array like this one.

        What `take` returns must not change until MPI has sent it, and what `land` gets is its to keep.
        """
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
                    room = np.empty_like(like)
                    request = self._group.Irecv([room.view(np.uint8), MPI.BYTE], link.other, self._tag)
                    link.flying.append((request, room))
                    link.given += 1
            for chunk in {self._chunk[transfer] for transfer in came}:
                order = turns[chunk]
                while order and order[0] in came:
                    transfer = order.popleft()
                    land(transfer, came.pop(transfer))
                    left -= 1
            for link in out:
                while link.done() is not None:
                    pass
                while (goes := link.next) is not None and turns[self._chunk[goes]][0] == goes:
                    values = take(goes)
                    request = self._group.Isend([values.view(np.uint8), MPI.BYTE], link.other, self._tag)
                    link.flying.append((request, values))
                    link.given += 1
                    turns[self._chunk[goes]].popleft()
                    left -= 1
            if before == (left, len(came), sum(len(link.flying) for link in out)):
                time.sleep(NAP)


def _each(chips: Array) -> list[int]:
    return [int(chip) for chip in np.unique(chips)]
