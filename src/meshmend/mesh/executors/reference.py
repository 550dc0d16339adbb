"""Runs a schedule in numpy, in one process: the reference that other executors are compared with.

It does exactly what the table says, slot by slot, and nothing else: values are taken when they are sent and change
the receiver `hop` slots later.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from meshmend.errors import PlanError
from meshmend.mesh.executors.base import Executor
from meshmend.mesh.executors.collectives import run as run
from meshmend.mesh.executors.staged import sum_staged
from meshmend.mesh.planners import Plan
from meshmend.mesh.proof import Proof
from meshmend.mesh.schedule import Schedule
from meshmend.mesh.staged import StagedPlan, StagedSchedule


class Reference(Executor):
    """A schedule in numpy."""

    def __call__(self, parts: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Sum `parts`, one row for each live chip (in order of `mesh.live`), into a row for each live chip."""
        live = len(self.schedule.mesh.live)
        if len(parts) != live:
            raise PlanError(f"{len(parts)} parts were given for {live} live chips: give one row per live chip")
        return _replay(self.schedule, parts)


def allreduce(
    how: Plan | Schedule | StagedPlan | StagedSchedule,
    parts: npt.NDArray[np.generic],
    *,
    proof: Proof | None = None,
) -> npt.NDArray[np.generic]:
    """Sum `parts`, one row for each live chip (in order of `mesh.live`), into a row for each live chip."""
    if isinstance(how, StagedPlan | StagedSchedule):
        return sum_staged(how if isinstance(how, StagedSchedule) else how.schedule(2 * len(how)), parts, proof=proof)
    return Reference(how if isinstance(how, Schedule) else how.schedule(2 * len(how)), proof)(parts)


def _replay(schedule: Schedule, parts: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """What the table says, right or wrong: tests of `verify` itself run wrong tables with it."""
    mesh = schedule.mesh
    flat = parts.reshape(len(parts), -1)
    width = -(-flat.shape[1] // schedule.chunks)
    held = np.zeros((mesh.size, schedule.chunks * width), parts.dtype)
    held[mesh.live, : flat.shape[1]] = flat
    held = held.reshape(mesh.size, schedule.chunks, width)
    sender, receiver, chunk, copy = schedule.sender, schedule.receiver, schedule.chunk, schedule.copy
    slots = np.unique(schedule.slot)
    begin, end = np.searchsorted(schedule.slot, slots), np.searchsorted(schedule.slot, slots, side="right")
    flying: deque[tuple[int, slice, npt.NDArray[np.generic]]] = deque()

    def land(until: float) -> None:
        while flying and flying[0][0] <= until:
            _, which, values = flying.popleft()
            to, piece, copied = receiver[which], chunk[which], copy[which]
            held[to[copied], piece[copied]] = values[copied]
            np.add.at(held, (to[~copied], piece[~copied]), values[~copied])

    for slot, first, last in zip(slots, begin, end, strict=True):
        land(slot)
        which = slice(first, last)
        flying.append((int(slot) + schedule.hop, which, held[sender[which], chunk[which]]))
    land(np.inf)
    return held.reshape(mesh.size, -1)[mesh.live, : flat.shape[1]].reshape(parts.shape)
