"""Rows and columns: reduce along one side of the mesh, then along the other at a fraction of the payload.

The 2-D sum of arXiv 2011.03641, with the two halves of the payload in opposite order as in arXiv 2011.03605, so
that row and column links work at the same time. Each half is a set of combs, one for each root:

    rows first  E E S W        columns first  S S S S        a chip's letter is the way to its parent,
                E E * W                       E E * W        `*` is the root
                E E N W                       N N N N

On a wrapped side a line is a ring, and its chips take the shorter way round. The result comes back over the same
tree. All reducing ends before broadcasting begins, so that a corner with two links holds the scheme to about 1.0 B.
Nothing may be dead.
"""

from __future__ import annotations

import numpy as np

from meshmend.base.units import plural
from meshmend.errors import PlanError
from meshmend.mesh import Mesh
from meshmend.mesh.grid import E, N, S, W
from meshmend.mesh.planners.base import Planner
from meshmend.mesh.planners.plan import Plan, Ways, make_plan

MANY_CHIPS = 1024
"""Up to here every chip is a root in both halves."""
ROOTS_PER_LINE = 16
"""Roots of a line in bigger meshes: the line carries 1 / (number of lines) of its half of the payload, so that
fewer roots there change the load by less than 1 %."""


def rowcol(mesh: Mesh) -> Plan:
    """Half of the payload rows first, half columns first; only where nothing is dead."""
    if not mesh.intact:
        raise PlanError(
            f"rowcol needs an intact mesh, but {mesh} has {plural(len(mesh.dead_chips), 'dead chip')} and "
            f"{plural(len(mesh.dead_links), 'dead link')} between live chips: use rowpair, trees or ring instead"
        )
    halves = [_rows_first(mesh.rows, mesh.cols, mesh.wrap)]
    if mesh.rows > 1 and mesh.cols > 1:
        # Columns first is rows first seen in the diagonal mirror, which swaps N with W and E with S.
        mirrored = _rows_first(mesh.cols, mesh.rows, mesh.wrap[::-1]).swapaxes(1, 2)
        halves.append(np.where(mirrored < 0, mirrored, 3 - mirrored))
    share = np.concatenate([np.full(len(half), 1 / len(half)) for half in halves])
    up = np.concatenate(halves).reshape(len(share), mesh.size)
    return make_plan(mesh, "rowcol", share, up, overlap=False)


def rows_first(mesh: Mesh) -> Plan:
    """The half that goes along rows first, for the whole payload: columns carry little, so others may share them."""
    if not mesh.intact:
        raise PlanError(f"rows first needs an intact mesh, but {mesh} has dead chips or links")
    up = _rows_first(mesh.rows, mesh.cols, mesh.wrap).reshape(-1, mesh.size)
    return make_plan(mesh, "rowcol", np.ones(len(up)), up, overlap=False)


def _rows_first(rows: int, cols: int, wrap: tuple[bool, ...]) -> Ways:
    """One tree per root (r, c), as [root, row, col]: every row to column c, then column c to row r."""
    count = rows if rows * cols <= MANY_CHIPS else min(rows, ROOTS_PER_LINE)
    nth, c = (grid.ravel() for grid in np.indices((count, cols)))
    r = (2 * nth + 1) * rows // (2 * count)
    # The roots of a column take turns, so that each direction of a ring carries the same.
    turn = (nth + c) % 2
    along = _to_target(cols, wrap[1], W, E)[turn, c]
    across = _to_target(rows, wrap[0], N, S)[turn, r]
    in_column = np.arange(cols) == c[:, None]
    trees: Ways = np.where(in_column[:, None, :], across[:, :, None], along[:, None, :])
    return trees


def _to_target(length: int, ring: bool, back: int, forth: int) -> Ways:
    """[turn, target, place]: the way along a line; in a ring the chip right opposite goes back, in turn 1 forth."""
    place = np.arange(length)
    ahead = np.stack([place[:, None] - place] * 2)
    if ring:
        half = length // 2
        ahead[0] = (ahead[0] + half) % length - half
        ahead[1] = half - (half - ahead[1]) % length
    return np.select([ahead < 0, ahead > 0], [back, forth], -1).astype(np.int8)


PLANNER = Planner(name="rowcol", make=rowcol, paper="2011.03641", needs_intact=True, along_rows=rows_first)
