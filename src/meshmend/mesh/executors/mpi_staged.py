"""Runs a staged schedule over MPI: ranks are chips, and each partial sum goes to a neighbour as one message.

plan = mm.plan("4x4 wrap=xy", 64e3, staged=True)         # a StagedPlan, if that is faster than trees
total = MeshStaged(group, plan.schedule(nbytes=64e3))(part)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from meshmend.mesh.executors.base import require_proof
from meshmend.mesh.executors.mpi_turns import Turns
from meshmend.mesh.executors.staged import Values, cut, joined, land, value
from meshmend.mesh.proof import Proof
from meshmend.mesh.staged import StagedSchedule

TAG = 79


class MeshStaged:
    """All-reduces in stages, for one group of ranks and one schedule."""

    def __init__(
        self,
        group: MPI.Comm,
        schedule: StagedSchedule,
        chips: Sequence[int] | None = None,
        proof: Proof | None = None,
    ) -> None:
        """`chips[rank]` is the chip that a rank of the group is, by default those alive in their order.

        Where no proof is given, every rank proves the schedule itself.
        """
        self.proof = require_proof(schedule, proof)
        self.schedule = schedule
        self._turns = Turns(group, schedule.table, chips, TAG)

    def __call__(self, part: npt.ArrayLike) -> Values:
        """The sum of all parts."""
        own = np.asarray(part)
        schedule, pieces = self.schedule, cut(self.schedule, own)
        if not pieces.size:
            return own.copy()
        chunk = schedule.table.chunk
        holds: list[dict[int, Values]] = [{} for _ in range(schedule.chunks)]

        def take(transfer: int) -> Values:
            where = int(chunk[transfer])
            return value(schedule, int(schedule.take[transfer]), holds[where], pieces[where])

        def put(transfer: int, values: Values) -> None:
            land(schedule, transfer, values, holds[int(chunk[transfer])])

        self._turns.run(pieces[0], take, put)
        cells = schedule.result[schedule.flow, self._turns.chip].tolist()
        total = [value(schedule, cell, *of_chunk) for cell, *of_chunk in zip(cells, holds, pieces, strict=True)]
        return joined(np.stack(total), own)
