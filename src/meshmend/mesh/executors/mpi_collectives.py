"""Runs the schedule of any collective over MPI: ranks are chips, and each chunk goes to a neighbour as one message.

gather = MeshCollective(group, mm.plan(mesh, collective="all_gather").schedule())
everything = gather(mine)            # what goes in and what comes out: `meshmend.mesh.executors.collectives`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from meshmend.mesh.collectives.schedule import CollectiveSchedule
from meshmend.mesh.executors.base import require_proof
from meshmend.mesh.executors.mpi_turns import Turns
from meshmend.mesh.executors.pieces import begin, cut, end, pieces_of
from meshmend.mesh.proof import Proof

TAG = 78
Array = npt.NDArray[Any]


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
        self.schedule, self._pieces = schedule, pieces_of(schedule)
        self._turns = Turns(group, schedule.table, chips, TAG)

    def __call__(self, part: npt.ArrayLike) -> Array:
        """The output of this chip, given its input."""
        own = np.asarray(part)
        pieces = cut(self._pieces, own)
        held = begin(self._pieces, self._turns.chip, pieces)
        chunk, copy = self.schedule.table.chunk, self.schedule.table.copy

        def take(transfer: int) -> Array:
            return np.array(held[chunk[transfer]])  # the chunk may change before MPI has sent it

        def land(transfer: int, values: Array) -> None:
            held[chunk[transfer]] = values if copy[transfer] else held[chunk[transfer]] + values

        if held.size:
            self._turns.run(held[0], take, land)
        return end(self._pieces, self._turns.chip, pieces, held, own.shape)
