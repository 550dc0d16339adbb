"""What each collective must compute, from numpy alone, and its bound, from all cuts."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from meshmend import CollectivePlan, CollectiveSchedule, Mesh
from meshmend.mesh.executors.collectives import execute


def parts_for(how: CollectivePlan | CollectiveSchedule, seed: int = 3, width: int = 5) -> np.ndarray:
    """Random large integers in the shape that the collective takes."""
    chips = len(how.mesh.live)
    shape = {"reduce_scatter": (chips, width * chips), "all_to_all": (chips, chips, width)}
    return np.random.default_rng(seed).integers(1, 2**40, shape.get(how.collective, (chips, width)))


def expected(how: CollectivePlan | CollectiveSchedule, parts: np.ndarray, root: int = -1) -> np.ndarray:
    """What must come out."""
    mesh, chips = how.mesh, len(parts)
    if how.collective == "reduce_scatter":
        return parts.sum(0).reshape(chips, -1)
    if how.collective == "all_gather":
        return np.broadcast_to(parts.reshape(-1), (chips, parts.size))
    if how.collective == "broadcast":
        return np.broadcast_to(parts[mesh.place[root]], parts.shape)
    if how.collective == "all_to_all":
        return parts.swapaxes(0, 1)
    group = how.group[mesh.live]
    return np.stack([parts[group == g].sum(0) if g >= 0 else part for g, part in zip(group, parts, strict=True)])


def is_right(schedule: CollectiveSchedule, root: int = -1) -> bool:
    """Whether running the table gives every chip what it must get."""
    parts = parts_for(schedule, width=schedule.cut)
    return np.array_equal(execute(schedule, parts), expected(schedule, parts, root))


def crossing(mesh: Mesh, part: np.ndarray) -> Fraction:
    """Links between parts, counted one by one."""
    total = Fraction(0)
    for chip, way in mesh.links.tolist():
        if part[chip] != part[mesh.neighbour[chip, way]]:
            total += Fraction(int(mesh.units[mesh.link_number(chip, way)]), mesh.whole)
    return total


def least_over_all_cuts(mesh: Mesh, collective: str, root: int) -> Fraction:
    """The bound by trying every set of chips."""
    live, chips = mesh.live.tolist(), len(mesh.live)
    best = None
    for bits in range(1, 2**chips - 1):
        inside = np.zeros(mesh.size, np.int32)
        inside[[chip for i, chip in enumerate(live) if bits >> i & 1]] = 1
        size = int(inside.sum())
        if collective == "broadcast" and inside[root]:
            continue
        ratio = {"broadcast": Fraction(1), "all_to_all": Fraction(chips, size * (chips - size))}.get(
            collective, Fraction(chips, chips - size)
        )
        found = crossing(mesh, inside) * ratio
        best = found if best is None or found < best else best
    assert best is not None
    return best
