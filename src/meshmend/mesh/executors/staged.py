"""Runs a staged schedule in numpy, in one process: cell by cell exactly what the table says, and nothing else."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshmend.errors import PlanError
from meshmend.mesh.executors.base import require_proof
from meshmend.mesh.proof import Proof
from meshmend.mesh.staged.schedule import OWN, StagedSchedule

Values = npt.NDArray[np.generic]


def sum_staged(schedule: StagedSchedule, parts: Values, *, proof: Proof | None = None) -> Values:
    """Sum `parts`, one row for each live chip (in order of `mesh.live`), into a row for each live chip."""
    live = len(schedule.mesh.live)
    if len(parts) != live:
        raise PlanError(f"{len(parts)} parts were given for {live} live chips: give one row per live chip")
    require_proof(schedule, proof)
    return replay(schedule, parts)


def replay(schedule: StagedSchedule, parts: Values) -> Values:
    """What the table says, right or wrong: tests of `verify` itself run wrong tables with it."""
    table, mesh = schedule.table, schedule.mesh
    flat = parts.reshape(len(parts), -1)
    width = -(-flat.shape[1] // table.chunks)
    own = np.zeros((len(parts), table.chunks * width), parts.dtype)
    own[:, : flat.shape[1]] = flat
    pieces = own.reshape(len(parts), table.chunks, width)
    out = np.zeros_like(pieces)
    order = np.argsort(table.chunk, kind="stable")
    begin = np.searchsorted(table.chunk[order], np.arange(table.chunks + 1))
    place, source, arrive = mesh.place[schedule.chip], schedule.source, table.arrive
    for chunk in range(table.chunks):
        holds: dict[int, npt.NDArray[np.generic]] = {}
        which = order[begin[chunk] : begin[chunk + 1]]
        landing = which[np.argsort(arrive[which], kind="stable")]
        flying: dict[int, npt.NDArray[np.generic]] = {}
        nothing = np.zeros(width, parts.dtype)

        def value(cell: int, holds: dict[int, Values] = holds, chunk: int = chunk, nothing: Values = nothing) -> Values:
            total = holds.get(cell, nothing)
            while source[cell] >= 0:
                cell = int(source[cell])
                total = total + holds.get(cell, nothing)  # type: ignore[operator]
            return total + pieces[place[cell], chunk] if source[cell] == OWN else total

        landed = 0
        for i in [*which.tolist(), -1]:
            while landed < len(landing) and (i < 0 or arrive[landing[landed]] <= table.slot[i]):
                done = int(landing[landed])
                cell, got = int(schedule.put[done]), flying.pop(done)
                holds[cell] = got if table.copy[done] or cell not in holds else holds[cell] + got  # type: ignore[operator]
                landed += 1
            if i >= 0:
                flying[i] = value(int(schedule.take[i]))
        for chip, cell in enumerate(schedule.result[schedule.flow[chunk]].tolist()):
            out[chip, chunk] = value(cell)
    return out.reshape(len(parts), -1)[:, : flat.shape[1]].reshape(parts.shape)
