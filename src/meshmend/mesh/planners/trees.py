"""Spanning trees packed so that every link is used as evenly as the mesh allows: the best plan on any mesh.

Reducing and broadcasting on the same tree uses each of its links once in each direction, so trees that share the
links evenly reach the bound (see `bound.py`), about twice what reduce-scatter then all-gather can do on a mesh.

* **Combs** on intact meshes and tori that are not long, in closed form. Tree A_i: all columns, joined along row i; tree
  B_j: all rows, joined along column j. Every i and j takes part, with the shares that load rows and columns alike. On
  a mesh that is exactly the bound. On a ring of columns each tree leaves out the link opposite its row.

      A_1   | | | |          B_2   - - + -
            +-+-+-+                - - + -
            | | | |                - - + -

* **Packing** everywhere else, and in three dimensions: about a hundred trees that begin as combs, bent around the hole
  by a shortest-way search and rooted in the middle of the mesh (deep trees would cost latency), then evened out by
  exchanges (`packing.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from meshmend.errors import PlanError
from meshmend.mesh import Mesh
from meshmend.mesh.grid import STEP, E, S, opposite
from meshmend.mesh.planners.base import Planner
from meshmend.mesh.planners.bound import Bound, bound, live_neighbours, weakest
from meshmend.mesh.planners.packing import balance, grow, number_links
from meshmend.mesh.planners.plan import Plan, depths, make_plan

TREES = 96
"""Enough that rounding costs under 1 %, few enough that tables stay small."""
SMALL = 128
"""Live chips up to which every one is tried as the root of a single tree: a few milliseconds."""
DEPTH = 1.1
"""How deep trees may be at first, over the shallowest tree of the mesh; more only where the packing needs it."""
COMB_DEPTH = 1.5
"""How deep combs may be over packed trees, which are a thousandth slower and take seconds to plan: on meshes up to
twice as long as wide. Hops that packing saves there win 1 % of the time of 100 MB; small payloads get few trees."""
GOLDEN = 0.6180339887498949
"""Multiples of it, without their whole parts, are spread evenly however many there are."""
NEAR_BOUND = 0.995
"""The part of the bound that whole numbers of trees and uses must allow."""

NEARER = 0.9995
"""The same on intact meshes, whose exchanges are few, if `MOST_TREES` allow it."""
MOST_TREES = 2 * TREES


def trees(mesh: Mesh, flows: int | None = None) -> Plan:
    """The packing; `flows` asks for about so many trees (1: the shallowest single tree, for small payloads)."""
    if flows is not None and flows < 1:
        raise PlanError(f"trees needs at least 1 flow, not {flows}: leave flows out for the best packing")
    limit = bound(mesh)
    if flows == 1 or limit.value <= 1 or limit.parts == 1:
        one = make_plan(mesh, "trees", np.ones(1), shallowest(mesh, every=len(mesh.live) <= SMALL))
        # A tree may use a link slower than the cut that bounds all plans; then several share it out.
        if flows == 1 or one.algbw >= NEAR_BOUND * limit.value:
            return replace(one, _bound=limit)
    flat = mesh.intact and not mesh.slow and len(mesh.dims) == 2
    if flows is None and flat and comb_algbw(mesh) >= NEAR_BOUND * limit.value and _shallow_combs(mesh):
        shares, up = combs(mesh)
    else:
        shares, up = packed(mesh, limit, flows)
    return replace(make_plan(mesh, "trees", shares, up), _bound=limit)


def shallowest(mesh: Mesh, *, every: bool = False) -> npt.NDArray[np.int8]:
    """One breadth-first tree from the chip whose farthest chip is nearest; `every` tries all chips."""
    near, back = live_neighbours(mesh)
    cost = np.ones(near.shape, np.int64)
    if every:  # where many links are dead, the way below can be two hops off
        grown = spread(mesh, np.stack([grow(near, back, root, cost) for root in range(len(near))]))
        return grown[[int(np.argmin(depths(mesh, grown).max(1)))]]
    # The middle of a longest shortest way is a centre of a mesh, or next to one.
    candidates = [_nearest(mesh, [(side - 1) / 2 for side in mesh.dims])]
    up = np.stack([grow(near, back, root, cost) for root in candidates])
    ends = [int(np.argmax(depths(mesh, spread(mesh, up))[0][mesh.live]))]
    for _ in range(2):
        path_tree = spread(mesh, grow(near, back, ends[-1], cost)[None])
        hops = depths(mesh, path_tree)[0]
        chip = int(mesh.live[np.argmax(hops[mesh.live])])
        ends.append(int(np.argmax(hops[mesh.live])))
        for _ in range(int(hops[chip]) // 2):
            chip = int(mesh.neighbour[chip, path_tree[0, chip]])
        candidates.append(int(np.searchsorted(mesh.live, chip)))
    grown = spread(mesh, np.stack([grow(near, back, root, cost) for root in candidates]))
    return grown[[int(np.argmin(depths(mesh, grown).max(1)))]]


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


def _shallow_combs(mesh: Mesh) -> bool:
    """Whether combs are hardly deeper than packed trees: those on a rim are, where a mesh is long."""
    sides = list(zip(mesh.dims, mesh.wrap, strict=True))
    teeth = [side // 2 if wrapped else side - 1 for side, wrapped in sides]
    least = sum(side // 2 for side, _ in sides)
    deepest = max(teeth[first] + least - mesh.dims[first] // 2 for first in np.flatnonzero(comb_shares(mesh)))
    return deepest <= COMB_DEPTH * DEPTH * least


def _along(place: npt.NDArray[np.int64], goal: int, length: int, ring: bool, forward: int) -> npt.NDArray[np.int64]:
    """The way from each place on a line or ring to the goal, the shorter way round; -1 at the goal."""
    ahead = (goal - place) % length if ring else goal - place
    forwards = (ahead > 0) & (ahead <= length // 2) if ring else ahead > 0
    return np.where(ahead == 0, -1, np.where(forwards, forward, opposite(forward)))


def packed(mesh: Mesh, limit: Bound, flows: int | None) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int8]]:
    """Shares and trees of a packing within 1 % of the bound (looser where few flows are asked for)."""
    near, back = live_neighbours(mesh)
    count, room = _room(mesh, limit, flows)
    up = np.stack([grow(near, back, root, cost) for root, cost in _bent_combs(mesh, count)])
    deepest = int(DEPTH * depths(mesh, shallowest(mesh)).max())
    over = balance(near, back, number_links(mesh), room[mesh.link_number(*mesh.links.T)], up, deepest)
    assert over == 0, f"{count} trees must fit the links of {mesh}: the bound or the exchanges are wrong"
    distinct, copies = np.unique(up, axis=0, return_counts=True)
    return copies.astype(np.float64), spread(mesh, distinct)


def reach(strength: float) -> float:
    """What the packing on a mesh with a hole reaches, in B, known from its bound before any tree is grown."""
    if strength <= 1 or strength == math.inf:
        return strength
    count, cap = _whole_numbers(strength, None)
    return count / cap


def _whole_numbers(strength: float, flows: int | None, near: float = NEAR_BOUND) -> tuple[int, int]:
    """How many trees, and how many of them may use one link."""
    if flows is not None:
        return flows, math.ceil(flows / strength)
    reached = {count: count / math.ceil(count / strength) / strength for count in range(TREES, MOST_TREES + 1)}
    # Just below a whole number of B no count may come as near as that: then the one that comes nearest.
    wanted = next((part for part in (near, NEAR_BOUND) if max(reached.values()) >= part), max(reached.values()))
    count = next(count for count, part in reached.items() if part >= wanted)
    return count, math.ceil(count / strength - 1e-9)


def _room(mesh: Mesh, limit: Bound, flows: int | None) -> tuple[int, npt.NDArray[np.int64]]:
    """How many trees, and how many of them may use each directed link: whole numbers, in proportion to its speed."""
    if mesh.even:
        count, cap = _whole_numbers(limit.value, flows, NEARER if mesh.intact else NEAR_BOUND)
        return count, cap * mesh.units
    strength = limit.fraction
    if flows is not None:
        cap = math.ceil(flows / strength)
        while _strength(mesh, cap * mesh.units // mesh.whole) < flows:
            cap += 1
        return flows, cap * mesh.units // mesh.whole
    best, best_part = (0, mesh.units), 0.0
    least = math.ceil(TREES / strength)
    # Where no link's room has to be rounded down, nothing is lost but by the number of trees.
    exact = range(-(-least // mesh.whole) * mesh.whole, 4 * least + mesh.whole, mesh.whole)
    for cap in (*exact, *range(least, 2 * least, max(1, least // 16))):
        room = cap * mesh.units // mesh.whole
        count = math.floor(cap * strength) if cap % mesh.whole == 0 else math.floor(_strength(mesh, room))
        part = count / (cap * limit.value)
        if part > best_part:
            best, best_part = (count, room), part
        if best_part >= NEAR_BOUND:
            break
    return best


def _strength(mesh: Mesh, room: npt.NDArray[np.int64]) -> Fraction:
    """The most trees that links with so much room can hold."""
    if (room[mesh.directed_links] == 0).any():
        room = np.maximum(room, mesh.units > 0)
    part, links = weakest(mesh, room)
    return Fraction(links, len(np.unique(part)) - 1)


def _bent_combs(mesh: Mesh, count: int) -> list[tuple[int, npt.NDArray[np.int64]]]:
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
            root = _nearest(mesh, goal)
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


def _nearest(mesh: Mesh, goal: Sequence[float]) -> int:
    """The place, among the live chips, of the one nearest to a point."""
    places = mesh.positions(mesh.live)
    return int(np.argmin(sum(np.abs(place - at) for place, at in zip(places, goal, strict=True))))


def spread(mesh: Mesh, up: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """Trees over the live chips turned into trees over all chips."""
    out = np.full((len(up), mesh.size), -1, np.int8)
    out[:, mesh.live] = up
    return out


PLANNER = Planner(name="trees", make=trees, reach=reach, dims=(2, 3))
