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
    pieces = np.stack([cut(schedule, part) for part in parts])
    out = np.zeros_like(pieces)
    order = np.argsort(table.chunk, kind="stable")
    begin = np.searchsorted(table.chunk[order], np.arange(table.chunks + 1))
    place, arrive = mesh.place[schedule.chip], table.arrive
    for chunk in range(table.chunks):
        holds: dict[int, Values] = {}
        which = order[begin[chunk] : begin[chunk + 1]]
        landing = which[np.argsort(arrive[which], kind="stable")]
        flying: dict[int, Values] = {}
        landed = 0
        for i in [*which.tolist(), -1]:
            while landed < len(landing) and (i < 0 or arrive[landing[landed]] <= table.slot[i]):
                done = int(landing[landed])
                land(schedule, done, flying.pop(done), holds)
                landed += 1
            if i >= 0:
                cell = int(schedule.take[i])
                flying[i] = value(schedule, cell, holds, pieces[place[cell], chunk])
        for chip, cell in enumerate(schedule.result[schedule.flow[chunk]].tolist()):
            out[chip, chunk] = value(schedule, cell, holds, pieces[chip, chunk])
    return np.stack([joined(one, part) for one, part in zip(out, parts, strict=True)])


def cut(schedule: StagedSchedule, part: Values) -> Values:
    """[chunk, width]: one chip's part in equal chunks, with zeros behind its end."""
    width = -(-part.size // schedule.chunks)
    out = np.zeros(schedule.chunks * width, part.dtype)
    out[: part.size] = part.ravel()
    return out.reshape(schedule.chunks, width)


def joined(chunks: Values, part: Values) -> Values:
    """The chunks of a chip's total, in the shape of its part."""
    return chunks.ravel()[: part.size].reshape(part.shape)


def value(schedule: StagedSchedule, cell: int, holds: dict[int, Values], own: Values) -> Values:
    """What a cell holds, with all that it begins with, where the chip's own part of the chunk is this one."""
    source, nothing = schedule.source, np.zeros_like(own)
    total = holds.get(cell, nothing)
    while source[cell] >= 0:
        cell = int(source[cell])
        total = total + holds.get(cell, nothing)  # type: ignore[operator]
    return total + own if source[cell] == OWN else total  # type: ignore[operator]


def land(schedule: StagedSchedule, transfer: int, values: Values, holds: dict[int, Values]) -> None:
    """Put what a transfer brings into its cell: in its place if it is a result, else added to it."""
    cell = int(schedule.put[transfer])
    added = not schedule.table.copy[transfer] and cell in holds
    holds[cell] = holds[cell] + values if added else values  # type: ignore[operator]
