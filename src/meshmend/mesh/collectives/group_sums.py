"""The sums of all groups at once, on shared links: peers hop over the rest of the tile (arXiv 2011.03641).

Each group is a graph of members and routes (`routes.py`). A link that several routes use is shared out evenly among
them, and each group packs spanning trees of its own graph into what its routes get (`planners/packing.py`), all groups
the same number. On a whole mesh that is the best there is: with tiles of a x b chips a route along a row shares its
links with the b groups of that row, so that every group has a mesh of tiles whose links are 1/b and 1/a of a link, and
that is exactly what the cut between tiles allows (`bounds.py`).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from meshmend.mesh import Mesh
from meshmend.mesh.collectives.bounds import CutBound, groups_bound
from meshmend.mesh.collectives.collective import ALL_REDUCE
from meshmend.mesh.collectives.groups import Labels, Tile
from meshmend.mesh.collectives.plan import CollectivePlan
from meshmend.mesh.collectives.routes import Routes, routes
from meshmend.mesh.planners.bound import weakest_of
from meshmend.mesh.planners.packing import balance, grow
from meshmend.mesh.planners.plan import Ways

Ints = npt.NDArray[np.int64]
TREES = 48
"""Trees of a group, at least: enough that rounding costs under 1 %, few enough that tables stay small."""
MOST_TREES = 192
NEAR = 0.99
FINEST = 2520
"""Parts that a link is shared out in: divisible by all numbers up to 10."""
DEPTH = 1.3
"""How deep trees may be at first, over the shallowest tree of the group."""


def plan_groups(mesh: Mesh, tile: Tile) -> CollectivePlan:
    """One all-reduce in each group, all at the same time."""
    return pack_groups(mesh, tile.groups(mesh), groups_bound(mesh, tile))


def pack_groups(mesh: Mesh, group: Labels, limit: CutBound) -> CollectivePlan:
    """Trees for every group of members, packed into the links that they share."""
    graphs = [routes(mesh, group, which) for which in range(int(group.max()) + 1)]
    units, whole = _shared_out(mesh, graphs)
    # Each group's strength, and so the number of trees that a cap on every link allows it.
    strength = min(_strength(graph, units_of) for graph, units_of in zip(graphs, units, strict=True)) / whole
    count, rooms = _whole_numbers(strength, whole, units)
    shares, roots, trees = [], [], []
    for graph, room in zip(graphs, rooms, strict=True):
        packed = _packed(mesh, graph, room, count)
        distinct, copies = np.unique(packed, axis=0, return_counts=True)
        trees.append(_on_links(mesh, graph, distinct))
        shares.append(copies / count)
        roots.append(graph.members[np.argmin(distinct, 1)])
    up = np.concatenate(trees)
    return CollectivePlan(
        mesh, ALL_REDUCE, group, np.concatenate(shares), np.concatenate(roots), up, up, count, limit
    )  # fmt: skip


def _shared_out(mesh: Mesh, graphs: list[Routes]) -> tuple[list[Ints], int]:
    """[member, route] of each group: what a route may use of its links; and what a whole link counts in the same units.

    A route gets what the most used of its links leaves it.
    """
    users = np.zeros(mesh.link_numbers, np.int64)
    for graph in graphs:
        np.add.at(users, graph.path[graph.path >= 0], 1)
    fine = math.lcm(*np.unique(users[users > 0]).tolist())
    # A link that more routes share than that still has a part for each.
    fine = fine if fine <= FINEST else max(FINEST, int(users.max()))
    part = fine * mesh.units // np.maximum(users, 1)
    out = []
    for graph in graphs:
        least = np.where(graph.path >= 0, part[graph.path], np.iinfo(np.int64).max).min(2)
        out.append(np.where(graph.near >= 0, least, 0))
    return out, fine * mesh.whole


def _strength(graph: Routes, units: Ints) -> float:
    part, links = weakest_of(graph.near, graph.back, units)
    return links / (len(np.unique(part)) - 1)


def _whole_numbers(strength: float, whole: int, units: list[Ints]) -> tuple[int, list[Ints]]:
    """How many trees each group packs, and how many of them may use each route."""
    step = math.gcd(whole, *np.unique(np.concatenate([u.ravel() for u in units])).tolist())
    whole, units = whole // step, [u // step for u in units]
    best: tuple[float, int, int] = (0.0, 0, 0)
    # A cap that is a multiple of `whole` leaves every route exactly its part.
    for cap in range(whole, whole * (1 + math.ceil(MOST_TREES / max(1e-9, strength * whole))) + 1, whole):
        count = math.floor(cap * strength + 1e-9)
        if count and count / cap > best[0] + 1e-12:
            best = count / cap, count, cap
        if count >= TREES and best[0] >= NEAR * strength:
            break
    _, count, cap = best
    return count, [cap // whole * u for u in units]


def _packed(mesh: Mesh, graph: Routes, room: Ints, count: int) -> Ways:
    """So many spanning trees of members, no route in more of them than its room."""
    number = np.full(graph.near.shape, -1, np.int64)
    first = (graph.near >= 0) & (
        (np.arange(len(graph.near))[:, None] < graph.near)
        | ((np.arange(len(graph.near))[:, None] == graph.near) & (np.arange(graph.near.shape[1]) < graph.back))
    )
    here, way = np.nonzero(first)
    number[here, way] = np.arange(len(here))
    number[graph.near[here, way], graph.back[here, way]] = np.arange(len(here))
    up = np.stack([grow(graph.near, graph.back, root, cost) for root, cost in _first_trees(mesh, graph, count)])
    depth = DEPTH * _depth(graph, up[0])
    over = balance(graph.near, graph.back, number, room[here, way], up, int(depth))
    assert over == 0, f"{count} trees must fit the routes of a group on {mesh}: its strength or the exchanges are wrong"
    return np.asarray(up)


def _depth(graph: Routes, up: npt.NDArray[np.int8]) -> int:
    """Routes between the root and the farthest member."""
    above = np.where(up >= 0, graph.near[np.arange(len(up)), np.maximum(up, 0)], np.arange(len(up)))
    depth = (up >= 0).astype(np.int64)
    for _ in range(len(up).bit_length()):
        depth, above = depth + depth[above], above[above]
    return int(depth.max())


def _first_trees(mesh: Mesh, graph: Routes, count: int) -> list[tuple[int, Ints]]:
    """Roots and costs of combs: teeth along one axis, joined along a spine near the middle, or anywhere on a ring."""
    places = [place.astype(np.int64) for place in mesh.positions(graph.members)]
    way = np.where(graph.path[:, :, 0] >= 0, mesh.link_source(np.maximum(graph.path[:, :, 0], 0))[1], 0)
    axis_of = np.array([0, 1, 0, 1, 2, 2])[way]
    axes = [axis for axis in range(len(mesh.dims)) if len(np.unique(places[axis])) > 1]
    out = []
    for i in range(count):
        first = axes[i % len(axes)]
        turn, turns = i // len(axes), -(-count // len(axes))
        width = 1.0 if mesh.wrap[first] else 0.3
        goal = [(side - 1) / 2 for side in mesh.dims]
        goal[first] += ((turn + 0.5) / turns - 0.5) * mesh.dims[first] * width
        root = int(np.argmin(sum(np.abs(place - at) for place, at in zip(places, goal, strict=True))))
        cost = np.ones(graph.near.shape, np.int64)
        off = places[first] != places[first][root]
        cost[off] = np.where(axis_of[off] == first, 1, 4)
        out.append((root, cost))
    return out


def _on_links(mesh: Mesh, graph: Routes, trees: Ways) -> Ways:
    """Trees of members and routes, turned into trees of chips and links."""
    out = np.full((len(trees), mesh.size), -1, np.int8)
    flow, member = np.nonzero(trees >= 0)
    links = graph.path[member, trees[flow, member]]
    step, real = np.broadcast_to(flow[:, None], links.shape), links >= 0
    chip, way = mesh.link_source(links[real])
    out[step[real], chip] = way
    return out
