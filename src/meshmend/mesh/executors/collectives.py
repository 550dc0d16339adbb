"""Runs the schedule of any collective in numpy, in one process, exactly as its table says.

    totals = mm.local.run(mm.plan("8x8", groups=mm.tile(2, 2)), parts)      # each group's sum, at its members

Rows are live chips, in order of `mesh.live`. What goes in and what comes out, of P live chips and n numbers:

| collective | in | out |
|---|---|---|
| all_reduce in groups | (P, n): each chip's part | (P, n): the sum of its group; chips in no group keep their row |
| reduce_scatter | (P, n), n a multiple of P | (P, n / P): each chip's piece of the sum |
| all_gather | (P, n): each chip's piece | (P, P * n): all pieces, one after another |
| broadcast | (P, n), of which only the root's row counts | (P, n): the root's row |
| all_to_all | (P, P, n): what each chip has for each chip | (P, P, n): what each chip got from each chip |
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from meshmend.errors import PlanError
from meshmend.mesh.collectives.plan import CollectivePlan
from meshmend.mesh.collectives.schedule import CollectiveSchedule
from meshmend.mesh.executors.base import require_proof
from meshmend.mesh.executors.pieces import begin, cut, end, pieces_of
from meshmend.mesh.proof import Proof

Array = npt.NDArray[np.generic]


def run(how: CollectivePlan | CollectiveSchedule, parts: Array, *, proof: Proof | None = None) -> Array:
    """Run one collective on a row for each live chip; see the table of `meshmend.mesh.executors.collectives`."""
    schedule = how if isinstance(how, CollectiveSchedule) else how.schedule()
    require_proof(schedule, proof)
    return execute(schedule, np.asarray(parts))


def execute(schedule: CollectiveSchedule, parts: Array) -> Array:
    """What the table says, right or wrong: tests of `verify` itself run wrong tables with it."""
    chips, kind = len(schedule.mesh.live), schedule.kind
    if parts.ndim < 2 or len(parts) != chips or (kind.personal and parts.shape[1] != chips):
        expected = f"({chips}, {chips}, n)" if kind.personal else f"({chips}, n)"
        raise PlanError(f"parts of shape {parts.shape} were given for {chips} live chips: give {expected}")
    if kind.up and kind.per_chip and parts[0].size % chips:
        raise PlanError(f"{parts[0].size} numbers cannot be scattered over {chips} chips: give a multiple of {chips}")
    pieces = pieces_of(schedule)
    cuts = np.stack([cut(pieces, part) for part in parts])
    held = _replayed(schedule, np.stack([begin(pieces, chip, own) for chip, own in enumerate(cuts)]))
    outs = [end(pieces, chip, own, held[chip], parts.shape[1:]) for chip, own in enumerate(cuts)]
    return np.stack(outs)


def _replayed(schedule: CollectiveSchedule, held: Array) -> Array:
    """[live chip, chunk, width] after all transfers: values leave as they are when sent, and land when they arrive."""
    table, place = schedule.table, schedule.mesh.place
    sender, receiver, arrive = place[table.sender], place[table.receiver], table.arrive
    landing = deque(np.argsort(arrive, kind="stable").tolist())
    flying: dict[int, Array] = {}

    def land(until: float) -> None:
        while landing and arrive[landing[0]] <= until:
            i = landing.popleft()
            chip, chunk = receiver[i], table.chunk[i]
            held[chip, chunk] = flying.pop(i) if table.copy[i] else held[chip, chunk] + flying.pop(i)

    for i, slot in enumerate(table.slot.tolist()):
        land(slot)
        flying[i] = held[sender[i], table.chunk[i]].copy()
    land(np.inf)
    return held
