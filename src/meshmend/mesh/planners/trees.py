"""Spanning trees packed so that every link is used as evenly as the mesh allows: the best plan on any mesh.

Reducing and broadcasting on the same tree uses each of its links once in each direction, so trees that share the
links evenly reach the bound (see `bound.py`), about twice what reduce-scatter then all-gather can do on a mesh.

* **Combs** on intact meshes and tori, in closed form. Tree A_i: all columns, joined along row i; tree B_j: all rows,
  joined along column j. Every i and j takes part, with the shares that load rows and columns alike. On a mesh that is
  exactly the bound. On a ring of columns each tree leaves out the link opposite its row.

      A_1   | | | |          B_2   - - + -
            +-+-+-+                - - + -
            | | | |                - - + -

* **Packing** everywhere else: about a hundred trees that begin as combs, bent around the hole by a shortest-way search
  and rooted in the middle of the mesh (deep trees would cost latency), then evened out by exchanges (`packing.py`).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from meshmend.errors import PlanError
from meshmend.mesh import Mesh
from meshmend.mesh.grid import WAYS, E, N, S, W, opposite
from meshmend.mesh.planners.base import Planner
from meshmend.mesh.planners.bound import Bound, bound, live_neighbours
from meshmend.mesh.planners.packing import balance, grow, number_links
from meshmend.mesh.planners.plan import Plan, depths, make_plan

TREES = 96
"""Enough that rounding costs under 1 %, few enough that tables stay small."""
SMALL = 128
"""Live chips up to which every one is tried as the root of a single tree: a few milliseconds."""
DEPTH = 1.1
"""How deep trees may be at first, over the shallowest tree of the mesh; more only where the packing needs it."""
NEAR_BOUND = 0.995
"""The part of the bound that whole numbers of trees and uses must allow."""


def trees(mesh: Mesh, flows: int | None = None) -> Plan:
    """The packing; `flows` asks for about so many trees (1: the shallowest single tree, for small payloads)."""
    if flows is not None and flows < 1:
        raise PlanError(f"trees needs at least 1 flow, not {flows}: leave flows out for the best packing")
    limit = bound(mesh)
    if flows == 1 or limit.value <= 1 or limit.parts == 1:
        shares, up = np.ones(1), shallowest(mesh, every=len(mesh.live) <= SMALL)
    elif flows is None and mesh.intact and comb_algbw(mesh) >= NEAR_BOUND * limit.value:
        shares, up = combs(mesh)
    else:
        shares, up = packed(mesh, limit, flows)
    return replace(make_plan(mesh, "trees", shares, up), _bound=limit)


def shallowest(mesh: Mesh, *, every: bool = False) -> npt.NDArray[np.int8]:
    """One breadth-first tree from the chip whose farthest chip is nearest; `every` tries all chips."""
    near = live_neighbours(mesh)
    cost = np.ones(near.shape, np.int64)
    if every:  # where many links are dead, the way below can be two hops off
        grown = spread(mesh, np.stack([grow(near, root, cost) for root in range(len(near))]))
        return grown[[int(np.argmin(depths(mesh, grown).max(1)))]]
    # The middle of a longest shortest way is a centre of a mesh, or next to one.
    candidates = [_nearest(mesh, (mesh.rows - 1) / 2, (mesh.cols - 1) / 2)]
    up = np.stack([grow(near, root, cost) for root in candidates])
    ends = [int(np.argmax(depths(mesh, spread(mesh, up))[0][mesh.live]))]
    for _ in range(2):
        path_tree = spread(mesh, grow(near, ends[-1], cost)[None])
        hops = depths(mesh, path_tree)[0]
        chip = int(mesh.live[np.argmax(hops[mesh.live])])
        ends.append(int(np.argmax(hops[mesh.live])))
        for _ in range(int(hops[chip]) // 2):
            chip = int(mesh.neighbour[chip, path_tree[0, chip]])
        candidates.append(int(np.searchsorted(mesh.live, chip)))
    grown = spread(mesh, np.stack([grow(near, root, cost) for root in candidates]))
    return grown[[int(np.argmin(depths(mesh, grown).max(1)))]]


def _comb_shares(mesh: Mesh) -> tuple[float, float]:
    """Shares of all A and of all B that load vertical and horizontal links alike."""
    # A vertical link carries every A but 1/rows of them where columns are rings, and the B of its own column.
    vertical_a, vertical_b = 1 - mesh.wrap[0] / mesh.rows, 1 / mesh.cols
    horizontal_b, horizontal_a = 1 - mesh.wrap[1] / mesh.cols, 1 / mesh.rows
    if mesh.rows == 1 or mesh.cols == 1:
        return (1.0, 0.0) if mesh.cols == 1 else (0.0, 1.0)
    a = (horizontal_b - vertical_b) / (vertical_a - vertical_b + horizontal_b - horizontal_a)
    return a, 1 - a


def comb_algbw(mesh: Mesh) -> float:
    """What combs reach on the mesh as if intact, in closed form; infinite for a single chip."""
    a, b = _comb_shares(mesh)
    vertical = a * (1 - mesh.wrap[0] / mesh.rows) + b / mesh.cols
    horizontal = b * (1 - mesh.wrap[1] / mesh.cols) + a / mesh.rows
    busiest = max(vertical * (mesh.rows > 1), horizontal * (mesh.cols > 1))
    return 1 / busiest if busiest else math.inf


def combs(mesh: Mesh) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int8]]:
    """Shares and trees of all combs of an intact mesh or torus."""
    row, col = mesh.positions()
    a, b = _comb_shares(mesh)
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


def _along(place: npt.NDArray[np.int64], goal: int, length: int, ring: bool, forward: int) -> npt.NDArray[np.int64]:
    """The way from each place on a line or ring to the goal, the shorter way round; -1 at the goal."""
    ahead = (goal - place) % length if ring else goal - place
    forwards = (ahead > 0) & (ahead <= length // 2) if ring else ahead > 0
    return np.where(ahead == 0, -1, np.where(forwards, forward, opposite(forward)))


def packed(mesh: Mesh, limit: Bound, flows: int | None) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int8]]:
    """Shares and trees of a packing within 1 % of the bound (looser where few flows are asked for)."""
    near = live_neighbours(mesh)
    number, links = number_links(near)
    count, cap = _whole_numbers(limit.value, flows)
    up = np.stack([grow(near, root, cost) for root, cost in _bent_combs(mesh, count)])
    deepest = int(DEPTH * depths(mesh, shallowest(mesh)).max())
    over = balance(near, number, links, up, cap, deepest)
    assert over == 0, f"{count} trees must fit {cap} uses of each link of {mesh}: the bound or the exchanges are wrong"
    distinct, copies = np.unique(up, axis=0, return_counts=True)
    return copies.astype(np.float64), spread(mesh, distinct)


def reach(strength: float) -> float:
    """What the packing on a mesh with a hole reaches, in B, known from its bound before any tree is grown."""
    if strength <= 1 or strength == math.inf:
        return strength
    count, cap = _whole_numbers(strength, None)
    return count / cap


def _whole_numbers(strength: float, flows: int | None) -> tuple[int, int]:
    """How many trees, and how many of them may use one link."""
    if flows is not None:
        return flows, math.ceil(flows / strength)
    count = TREES
    while count / math.ceil(count / strength) < NEAR_BOUND * strength:
        count += 1
    return count, math.ceil(count / strength - 1e-9)


def _bent_combs(mesh: Mesh, count: int) -> list[tuple[int, npt.NDArray[np.int64]]]:
    """Roots and costs whose shortest ways are combs, bent where something is dead."""
    row, col = mesh.positions(mesh.live.astype(np.int64))
    a, _ = _comb_shares(mesh)
    number_a = min(count, max(0, round(count * a)))
    out = []
    for by_rows, number in ((True, number_a), (False, count - number_a)):
        length = mesh.rows if by_rows else mesh.cols
        # Spines near the middle keep trees shallow; on a ring every place is the middle.
        width = 1.0 if mesh.wrap[0 if by_rows else 1] else 0.3
        for i in range(number):
            spine = (length - 1) / 2 + ((i + 0.5) / number - 0.5) * length * width
            root = _nearest(mesh, *((spine, (mesh.cols - 1) / 2) if by_rows else ((mesh.rows - 1) / 2, spine)))
            cost = np.ones((len(row), len(WAYS)), np.int64)
            off = row != row[root] if by_rows else col != col[root]
            cost[np.ix_(off, [E, W] if by_rows else [N, S])] = 4  # leave the comb's tooth only where there is a hole
            out.append((root, cost))
    return out


def _nearest(mesh: Mesh, row: float, col: float) -> int:
    """The place, among the live chips, of the one nearest to a point."""
    rows, cols = mesh.positions(mesh.live)
    return int(np.argmin(np.abs(rows - row) + np.abs(cols - col)))


def spread(mesh: Mesh, up: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """Trees over the live chips turned into trees over all chips."""
    out = np.full((len(up), mesh.size), -1, np.int8)
    out[:, mesh.live] = up
    return out


PLANNER = Planner(name="trees", make=trees, reach=reach)
