"""A schedule as each chip sees it: in this slot, which chunk goes out and which comes in, for each of its ways.

Rows of a table are slots. A chunk taken in slot t is on its way in slot t + 1 and lands at the beginning of slot t + 2,
so that in every slot the links carry one set of chunks while the chip adds up the last and takes the next: nothing of
what a slot does waits for another part of it. The schedule therefore needs `hop` of 2 or more. A way with nothing to do
names the **spare** row, one more than there are chunks, which holds nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshmend.errors import PlanError
from meshmend.mesh import Fabric
from meshmend.mesh.grid import B, E, F, N, S, W
from meshmend.mesh.schedule import Schedule

HOP = 2
"""Slots from taking a chunk to landing it."""
ORDER = (B, S, E, W, N, F)
"""Ways in which chunks that land together are added: by the sender's number, as the reference in numpy does."""

Pairs = tuple[tuple[int, int], ...]


class Moves(NamedTuple):
    """What each live chip does, as [chip, slot, way] with the chips in order of `mesh.live`."""

    send: npt.NDArray[np.int32]
    """The chunk that is taken, to go this way."""
    land: npt.NDArray[np.int32]
    """The chunk that lands, having come this way."""
    copy: npt.NDArray[np.bool_]
    """Whether it replaces what the chip has, or is added to it."""


def turns(schedule: Schedule) -> int:
    """How many slots the tables have: the last chunk lands in the last one."""
    return int(schedule.slot.max()) + 1 + HOP if len(schedule) else 0


def moves(schedule: Schedule, capacity: int) -> Moves:
    """The tables of a schedule, padded to `capacity` slots."""
    if schedule.pace:
        raise PlanError(f"a schedule with pace={schedule.pace} cannot run here: make it with schedule(even=True)")
    if schedule.hop < HOP:
        raise PlanError(f"a schedule with hop={schedule.hop} cannot run here: make it with schedule(hop={HOP})")
    place = schedule.mesh.place
    shape = len(schedule.mesh.live), capacity, len(schedule.mesh.ways)
    out = Moves(
        np.full(shape, schedule.chunks, np.int32),
        np.full(shape, schedule.chunks, np.int32),
        np.ones(shape, bool),  # copies of nothing, so that the spare row stays empty
    )
    way = schedule.mesh.link_source(schedule.link)[1]
    out.send[place[schedule.sender], schedule.slot, way] = schedule.chunk
    lands = place[schedule.receiver], schedule.slot + HOP, way
    out.land[lands] = schedule.chunk
    out.copy[lands] = schedule.copy
    return out


def neighbours(mesh: Fabric, cores: int = 1) -> tuple[Pairs, ...]:
    """For each way, the pairs (from, to) of places among the live chips that a live link joins.

    With `cores` devices per chip, the places are those of the devices, chip by chip, and a core's neighbour is the same
    core of the next chip.
    """
    there = mesh.place[mesh.neighbour[mesh.live]]
    return tuple(
        tuple(
            (int(i) * cores + core, int(there[i, way]) * cores + core)
            for i in np.flatnonzero(there[:, way] >= 0)
            for core in range(cores)
        )
        for way in range(len(mesh.ways))
    )
