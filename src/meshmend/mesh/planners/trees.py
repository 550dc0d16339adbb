"""Spanning trees packed so that every link is used as evenly as the mesh allows: the best plan on any mesh.

Reducing and broadcasting on the same tree uses each of its links once in each direction, so trees that share the
links evenly reach the bound (see `bound.py`), about twice what reduce-scatter then all-gather can do on a mesh.

* **Combs** (`combs.py`) on intact meshes and tori that are not long, in closed form. Tree A_i: all columns, joined
  along row i; tree B_j: all rows, joined along column j. Every i and j takes part, with the shares that load rows and
  columns alike. On a mesh that is exactly the bound. On a ring of columns each tree leaves out the link opposite its
  row.

      A_1   | | | |          B_2   - - + -
            +-+-+-+                - - + -
            | | | |                - - + -

* **Packing** everywhere else, and in three dimensions: about a hundred trees that begin as combs, bent around the hole
  by a shortest-way search and rooted in the middle of the mesh (deep trees would cost latency), then evened out by
  exchanges (`packing.py`). On a graph they begin as shortest ways, each tree around the links that others use.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from meshmend.errors import PlanError
from meshmend.mesh import Fabric, Mesh
from meshmend.mesh.planners.base import Planner
from meshmend.mesh.planners.bound import Bound, bound, live_neighbours, weakest
from meshmend.mesh.planners.combs import bent_combs, comb_algbw, combs, shallow_combs
from meshmend.mesh.planners.packing import balance, grow, number_links
from meshmend.mesh.planners.plan import Plan, depths, make_plan

Ints = npt.NDArray[np.int64]
TREES = 96
"""Enough that rounding costs under 1 %, few enough that tables stay small."""
SMALL = 128
"""Live chips up to which every one is tried as the root of a single tree: a few milliseconds."""
DEPTH = 1.1
"""How deep trees may be at first, over the shallowest tree of the mesh; more only where the packing needs it."""
HOP, DETOUR = 8, 10
"""What a hop costs a tree that is grown beside others, and a hop over a link that they have used too much."""
ROOTS = 32
"""Chips that are roots of a graph's first trees, at least; on large graphs those of the inner quarter are."""
NEAR_BOUND = 0.995
"""The part of the bound that whole numbers of trees and uses must allow."""

NEARER = 0.9995
"""The same on intact meshes, whose exchanges are few, if `MOST_TREES` allow it."""
MOST_TREES = 2 * TREES


def trees(mesh: Fabric, flows: int | None = None) -> Plan:
    """The packing; `flows` asks for about so many trees (1: the shallowest single tree, for small payloads)."""
    if flows is not None and flows < 1:
        raise PlanError(f"trees needs at least 1 flow, not {flows}: leave flows out for the best packing")
    limit = bound(mesh)
    if flows == 1 or limit.value <= 1 or limit.parts == 1:
        one = make_plan(mesh, "trees", np.ones(1), shallowest(mesh, every=len(mesh.live) <= SMALL))
        # A tree may use a link slower than the cut that bounds all plans; then several share it out.
        if flows == 1 or one.algbw >= NEAR_BOUND * limit.value:
            return replace(one, _bound=limit)
    if flows is None and isinstance(mesh, Mesh) and _suit_combs(mesh, limit):
        shares, up = combs(mesh)
    else:
        shares, up = packed(mesh, limit, flows)
    return replace(make_plan(mesh, "trees", shares, up), _bound=limit)


def _suit_combs(mesh: Mesh, limit: Bound) -> bool:
    """Whether combs are as good as a packing: on flat meshes of which nothing is dead, that are not long."""
    flat = mesh.intact and not mesh.slow and len(mesh.dims) == 2
    return flat and comb_algbw(mesh) >= NEAR_BOUND * limit.value and shallow_combs(mesh, DEPTH)


def shallowest(mesh: Fabric, *, every: bool = False) -> npt.NDArray[np.int8]:
    """One breadth-first tree from the chip whose farthest chip is nearest; `every` tries all chips."""
    near, back = live_neighbours(mesh)
    cost = np.ones(near.shape, np.int64)
    if every:  # where many links are dead, the way below can be two hops off
        grown = spread(mesh, np.stack([grow(near, back, root, cost) for root in range(len(near))]))
        return grown[[int(np.argmin(depths(mesh, grown).max(1)))]]
    # The middle of a longest shortest way is a centre of a mesh, or next to one.
    candidates = [int(mesh.place[mesh.middle])]
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


def packed(mesh: Fabric, limit: Bound, flows: int | None) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int8]]:
    """Shares and trees of a packing within 1 % of the bound (looser where few flows are asked for)."""
    near, back = live_neighbours(mesh)
    count, room = _room(mesh, limit, flows)
    number, of_link, least = number_links(mesh), room[mesh.link_number(*mesh.links.T)], shallowest(mesh)
    if isinstance(mesh, Mesh):
        up = np.stack([grow(near, back, root, cost) for root, cost in bent_combs(mesh, count)])
    else:
        up = _side_by_side(near, back, number, of_link, count, depths(mesh, least)[0, mesh.live])
    deepest = int(DEPTH * depths(mesh, least).max())
    over = balance(near, back, number, of_link, up, deepest)
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


def _room(mesh: Fabric, limit: Bound, flows: int | None) -> tuple[int, npt.NDArray[np.int64]]:
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


def _strength(mesh: Fabric, room: npt.NDArray[np.int64]) -> Fraction:
    """The most trees that links with so much room can hold."""
    if (room[mesh.directed_links] == 0).any():
        room = np.maximum(room, mesh.units > 0)
    part, links = weakest(mesh, room)
    return Fraction(links, len(np.unique(part)) - 1)


def _side_by_side(
    near: Ints, back: Ints, number: Ints, room: Ints, count: int, off: npt.NDArray[np.int32]
) -> npt.NDArray[np.int8]:
    """Trees for a graph, one after another: shortest ways, around the links that have been used the most.

    Roots are many, so that trees differ, and not far `off` the middle.
    """
    roots = np.argsort(off, kind="stable")[: max(ROOTS, len(off) // 4)]
    use = np.zeros(len(room), np.int64)
    up = []
    for tree in range(count):
        price = np.clip(HOP + use - room * tree // count, HOP, DETOUR)
        up.append(grow(near, back, int(roots[tree % len(roots)]), np.where(near >= 0, price[number], HOP)))
        chip = np.flatnonzero(up[-1] >= 0)
        use += np.bincount(number[chip, up[-1][chip]], minlength=len(room))
    return np.stack(up)


def spread(mesh: Fabric, up: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """Trees over the live chips turned into trees over all chips."""
    out = np.full((len(up), mesh.size), -1, np.int8)
    out[:, mesh.live] = up
    return out


PLANNER = Planner(name="trees", make=trees, reach=reach, dims=(2, 3), graphs=True)
