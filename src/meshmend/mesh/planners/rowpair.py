"""Row pairs, with hand-over around a hole: the fault-tolerant 2-D scheme of arXiv 2011.03605.

Two rows form a ring: along one, back along the next. Every pair reduces around its ring, in both directions, to its
**exit** in the root's column, and the sums pass from pair to pair along that column. The ring is opened behind the
exit, so that what comes from farther pairs does not go round again. The result comes back over the same tree.

    E E N E S     a pair below the root's: its exit points N to the next pair, and
    N W N W W     the chip behind the exit passes on what it gets from the pairs below

A pair with a dead chip or link is **cut**, as is an odd last row. Neighbouring cut rows form a block: its live chips
hand over to the whole pair above in half of the flows, to the one below in the others, and a column that crosses it
joins the two. Hand-over between forwarding and critical groups is also claimed in US patent 11,715,010 B2 (in force);
the tree planner does not use it. Pipelining in chunks is the schedule's work. Vertical wrap links stay unused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshmend.errors import PlanError
from meshmend.mesh import Mesh
from meshmend.mesh.grid import E, N, S, W, opposite
from meshmend.mesh.planners.base import Planner
from meshmend.mesh.planners.plan import Plan, Ways, make_plan

TOP, BOTTOM = 0, 1
MOST_FLOWS = 2048
"""Above, only some pairs hold roots: the columns carry 1 / cols of the payload, too little to show in the load."""
NEVER = np.iinfo(np.int32).max

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Gap:
    """What lies between two neighbouring whole pairs, or between a whole pair and the rim: a block of cut rows.

    The first axis of the arrays is the way across: 0 is up (N), 1 is down (S).
    """

    rows: slice
    trees: Ways
    """[way, row, col]: every live chip handed over up (or down), or the other way where that is blocked."""
    routes: Ways
    """[way, col, row, col]: the chips that a sum passes which leaves its pair in this column."""
    column: Ints
    """[way, turn, col]: the exit of the pair farther from the root, given that of the nearer pair."""


def rowpair(mesh: Mesh) -> Plan:
    """Rings over pairs of rows, columns between pairs; chips of cut pairs hand over to the nearest whole pairs."""
    if mesh.rows < 2 or mesh.cols < 2:
        raise PlanError(f"rowpair needs at least 2 rows and 2 columns, and {mesh} has fewer: use ring or trees instead")
    mesh.require_connected()
    pairs = _whole_pairs(mesh)
    if not len(pairs):
        raise PlanError(
            f"rowpair needs a pair of rows without a dead chip or link, and {mesh} has none: use trees or ring instead"
        )
    near = _links(mesh)
    ends = [0, *(pairs + 2)], [*pairs, mesh.rows]
    gaps = [_gap(mesh, near, first, last) for first, last in zip(*ends, strict=True)]

    count = min(len(pairs), max(1, MOST_FLOWS // (4 * mesh.cols)))
    nth, row, col, turn = (grid.ravel() for grid in np.indices((count, 2, mesh.cols, 2)))
    home = (2 * nth + 1) * len(pairs) // (2 * count)
    handover = (nth + row + col) % 2
    flow = np.arange(len(home))
    up = np.full((len(flow), mesh.rows, mesh.cols), -1, np.int8)
    exits = np.tile(col, (len(pairs), 1))
    for i in range(1, len(pairs)):
        np.copyto(exits[i], gaps[i].column[0, turn, exits[i - 1]], where=home < i)
    for i in reversed(range(len(pairs) - 1)):
        np.copyto(exits[i], gaps[i + 1].column[1, turn, exits[i + 1]], where=home > i)

    for i, gap in enumerate(gaps):
        up[:, gap.rows] = gap.trees[handover]
        if 0 < i < len(pairs):
            route = np.where((home < i)[:, None, None], gap.routes[0, exits[i]], gap.routes[1, exits[i - 1]])
            np.copyto(up[:, gap.rows], route, where=route >= 0)
    rings = _rings(mesh.cols)
    for i, first in enumerate(pairs):
        side = np.sign(home - i) + 1
        exit_row = np.choose(side, [TOP, row, BOTTOM])
        up[:, first : first + 2] = rings[turn, exit_row, exits[i]]
        up[flow, first + exit_row, exits[i]] = np.choose(side, [N, -1, S])
    # Broadcasting back over the same tree loads each link as reducing loads its reverse: just as evenly.
    return make_plan(mesh, "rowpair", np.ones(len(flow)), up.reshape(len(flow), mesh.size), overlap=False)


def _links(mesh: Mesh) -> Ints:
    """`mesh.neighbour` without the links that join the first row to the last."""
    near = mesh.neighbour.astype(np.int64)
    near[: mesh.cols, N] = -1
    near[-mesh.cols :, S] = -1
    return near


def _whole_pairs(mesh: Mesh) -> Ints:
    """The upper rows of the pairs that can close their ring and step across it in every column."""
    pairs = mesh.rows // 2
    live = (mesh.neighbour[: 2 * pairs * mesh.cols] >= 0).reshape(pairs, 2, mesh.cols, len(mesh.ways))
    return 2 * np.flatnonzero(live[:, :, :-1, E].all((1, 2)) & live[:, TOP, :, S].all(1))


def _rings(cols: int) -> Ways:
    """[turn, exit row, exit col, row, col]: a pair's ring, in both directions, opened behind its exit."""
    ring = np.empty((2, 2, cols), np.int8)
    ring[0, TOP], ring[0, BOTTOM], ring[1, TOP], ring[1, BOTTOM] = E, W, W, E
    ring[0, TOP, -1] = ring[1, TOP, 0] = S
    ring[0, BOTTOM, 0] = ring[1, BOTTOM, -1] = N
    rings = np.broadcast_to(ring[:, None, None], (2, 2, cols, 2, cols)).copy()
    c = np.arange(cols)
    rings[:, TOP, c, BOTTOM, c] = N
    rings[:, BOTTOM, c, TOP, c] = S
    return rings


def _gap(mesh: Mesh, near: Ints, first: int, last: int) -> _Gap:
    """The gap whose block of cut rows goes from `first` up to, not including, `last`; there may be no such rows."""
    cols = mesh.cols
    block = range(first * cols, last * cols)
    above = np.arange(block.start - cols, block.start)[: cols * (first > 0)]
    below = np.arange(block.stop, block.stop + cols)[: cols * (last < mesh.rows)]
    found = np.stack([_handover(near, block, above, N), _handover(near, block, below, S)])
    trees = np.where(found >= 0, found, found[::-1])
    stuck = np.flatnonzero((trees[0] < 0) & mesh.alive[block.start : block.stop])
    if len(stuck):
        raise PlanError(
            f"rowpair does not use wrapped columns, and without them chip {mesh.chip(block[stuck[0]])} of {mesh} "
            "cannot reach a pair of rows without a dead chip or link: use trees or ring instead"
        )
    routes = np.full((2, cols, len(block)), -1, np.int8)
    column = np.zeros((2, 2, cols), np.int64)
    if len(above) and len(below):
        for k, starts in enumerate((near[below, N], near[above, S])):
            routes[k], hops = _routes(near, block, found[k], starts)
            if hops.min() == NEVER:
                raise PlanError(
                    f"rowpair does not use wrapped columns, and without them rows {first - 1} and {last} of {mesh} are "
                    "not joined across the hole between them: use trees or ring instead"
                )
            # What enters a ring from the side from which it comes to the exit need not go all the way round.
            column[k] = [_columns(hops == hops.min(), step) for step in ((1, -1), (-1, 1))[k]]
    shape = (last - first, cols)
    return _Gap(slice(first, last), trees.reshape(2, *shape), routes.reshape(2, cols, *shape), column)


def _handover(near: Ints, block: range, pair: Ints, way: int) -> Ways:
    """The way from each chip of a block to the row of a whole pair beyond it, by breadth-first search.

    Straight moves come first, so that a chip steps aside only around the hole; the two ways step aside to opposite
    sides where either will do.
    """
    tree = np.full(len(block), -1, np.int8)
    front = pair
    while len(front):
        level = []
        for move in (way, (way + 1) % 4, (way + 3) % 4, opposite(way)):
            chip = near[front, opposite(move)] - block.start
            chip = chip[(chip >= 0) & (chip < len(block))]
            chip = chip[tree[chip] < 0]
            tree[chip] = move
            level.append(chip + block.start)
        front = np.concatenate(level)
    return tree


def _routes(near: Ints, block: range, tree: Ways, starts: Ints) -> tuple[Ways, Ints]:
    """[col, chip]: the ways from each start through the block, and how many; `NEVER` where there is no route."""
    routes = np.full((len(starts), len(block)), -1, np.int8)
    hops = np.where(starts < 0, NEVER, 0)
    at = starts - block.start
    going = np.flatnonzero((at >= 0) & (at < len(block)))
    while len(going):
        here = at[going]
        routes[going, here] = tree[here]
        hops[going] = np.where(tree[here] < 0, NEVER, hops[going] + 1)
        going = going[tree[here] >= 0]
        at[going] = near[block.start + at[going], tree[at[going]]] - block.start
        going = going[(at[going] >= 0) & (at[going] < len(block))]
    return routes, hops


def _columns(usable: npt.NDArray[np.bool_], step: int) -> Ints:
    """Each usable column itself; for each other one a usable one nearby, rather on the side of `step`."""
    column = np.arange(len(usable))
    shared = np.zeros(len(usable), int)
    # The rim's links between the two rows of a pair are busy with the turns of its ring.
    shared[[0, -1]] = 1
    for c in np.flatnonzero(~usable):
        column[c] = min(np.flatnonzero(usable), key=lambda u: (shared[u], (u - c) * step < 0, abs(u - c)))
        shared[column[c]] += 1
    return column


PLANNER = Planner(name="rowpair", make=rowpair, paper="2011.03605")
