"""Combs: trees on a grid whose teeth are all lines along one axis, joined along a spine across them.

On intact meshes and tori they are known in closed form; around a hole they are where packing begins, bent along
shortest ways.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshmend.mesh import Mesh
from meshmend.mesh.grid import STEP, E, S, opposite

COMB_DEPTH = 1.5
"""How deep combs may be over packed trees, which are a thousandth slower and take seconds to plan: on meshes up to
twice as long as wide. Hops that packing saves there win 1 % of the time of 100 MB; small payloads get few trees."""
GOLDEN = 0.6180339887498949
"""Multiples of it, without their whole parts, are spread evenly however many there are."""


def _axis_loads(mesh: Mesh) -> npt.NDArray[np.float64]:
    """[axis, first]: what a link along an axis carries of all combs whose teeth lie along the first axis.

    Teeth are all lines along the first axis; where they are rings, each leaves out one link. The plane that joins them
    is a comb itself, with its teeth along one of the other axes in half of the combs, along the other in the rest.
    """
    sides = len(mesh.dims)
    loads = np.zeros((sides, sides))
    for first in range(sides):
        loads[first, first] = 1 - mesh.wrap[first] / mesh.dims[first]
        others = [axis for axis in range(sides) if axis != first]
        for axis in others:
            beside = math.prod(mesh.dims[other] for other in others if other != axis)
            loads[axis, first] = (1 + (sides - 2) / beside) / (sides - 1) / mesh.dims[first]
    return loads


def comb_shares(mesh: Mesh) -> npt.NDArray[np.float64]:
    """Shares of the combs with teeth along each axis that load all axes alike, each as its links are fast."""
    shares = np.zeros(len(mesh.dims))
    axes = [axis for axis, side in enumerate(mesh.dims) if side > 1] or [0]
    speeds = np.array([float(mesh.axis_speed[axis]) for axis in axes])
    loads = _axis_loads(mesh)[np.ix_(axes, axes)]
    shares[axes] = np.maximum(0, np.linalg.solve(loads, speeds)) if len(axes) > 1 else 1
    return np.asarray(shares / shares.sum())


def comb_algbw(mesh: Mesh) -> float:
    """What combs reach on the mesh as if intact, in closed form; infinite for a single chip."""
    if mesh.size == 1:
        return math.inf
    sides = np.array(mesh.dims) > 1
    loads = _axis_loads(mesh) @ comb_shares(mesh) / np.array(mesh.axis_speed, np.float64)
    return 1 / float(loads[sides].max())


def combs(mesh: Mesh) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int8]]:
    """Shares and trees of all combs of an intact mesh or torus."""
    row, col = mesh.positions()
    a, b = comb_shares(mesh).tolist()
    shares: list[float] = []
    up = []
    for spine in range(mesh.rows if a else 0):
        to_spine = _along(row, spine, mesh.rows, mesh.wrap[0], forward=S)
        along = _along(col, mesh.cols // 2, mesh.cols, False, forward=E)
        up.append(np.where(row == spine, along, to_spine))
        shares.append(a / mesh.rows)
    for spine in range(mesh.cols if b else 0):
        to_spine = _along(col, spine, mesh.cols, mesh.wrap[1], forward=E)
        along = _along(row, mesh.rows // 2, mesh.rows, False, forward=S)
        up.append(np.where(col == spine, along, to_spine))
        shares.append(b / mesh.cols)
    return np.array(shares), np.array(up, np.int8)


def shallow_combs(mesh: Mesh, over: float) -> bool:
    """Whether combs are hardly deeper than packed trees of so much more than the least depth: not on long meshes."""
    sides = list(zip(mesh.dims, mesh.wrap, strict=True))
    teeth = [side // 2 if wrapped else side - 1 for side, wrapped in sides]
    least = sum(side // 2 for side, _ in sides)
    deepest = max(teeth[first] + least - mesh.dims[first] // 2 for first in np.flatnonzero(comb_shares(mesh)))
    return deepest <= COMB_DEPTH * over * least


def _along(place: npt.NDArray[np.int64], goal: int, length: int, ring: bool, forward: int) -> npt.NDArray[np.int64]:
    """The way from each place on a line or ring to the goal, the shorter way round; -1 at the goal."""
    ahead = (goal - place) % length if ring else goal - place
    forwards = (ahead > 0) & (ahead <= length // 2) if ring else ahead > 0
    return np.where(ahead == 0, -1, np.where(forwards, forward, opposite(forward)))


def bent_combs(mesh: Mesh, count: int) -> list[tuple[int, npt.NDArray[np.int64]]]:
    """Roots and costs whose shortest ways are combs, bent where something is dead.

    A comb's teeth lie along its first axis. Those that leave a tooth for another pay more, the more so the farther they
    are from the spine, so that they do it only where there is a hole.
    """
    places = mesh.positions(mesh.live.astype(np.int64))
    middle = [(side - 1) / 2 for side in mesh.dims]
    number = np.round(count * comb_shares(mesh)).astype(int)
    number[-1] = count - number[:-1].sum()
    out = []
    for first, of_axis in enumerate(number.tolist()):
        others = [axis for axis in range(len(mesh.dims)) if axis != first]
        # Spines near the middle keep trees shallow; on a ring every place is the middle.
        width = [1.0 if wrapped else 0.3 for wrapped in mesh.wrap]
        for i in range(of_axis):
            goal = list(middle)
            goal[first] += ((i + 0.5) / of_axis - 0.5) * mesh.dims[first] * width[first]
            second, *last = others if i % 2 == 0 else others[::-1]
            if last:
                goal[second] += ((i * GOLDEN) % 1 - 0.5) * mesh.dims[second] * width[second]
            root = nearest(mesh, goal)
            cost = np.ones((len(mesh.live), len(mesh.ways)), np.int64)
            off = places[first] != places[first][root]
            for way in range(len(mesh.ways)):
                axis = STEP[way][0]
                if axis == second:
                    cost[off, way] = 4
                elif axis in last:
                    cost[places[second] != places[second][root], way] = 4
                    cost[off, way] = 8
            out.append((root, cost))
    return out


def nearest(mesh: Mesh, goal: Sequence[float]) -> int:
    """The place, among the live chips, of the one nearest to a point."""
    places = mesh.positions(mesh.live)
    return int(np.argmin(sum(np.abs(place - at) for place, at in zip(places, goal, strict=True))))
