"""All-gather and reduce-scatter: one spanning tree for each chip, together as even on all links as the mesh allows.

Every chip is the root of 1/N of the payload. In an all-gather each chip receives every other chip's piece once, so what
counts is over which of its links each piece comes: a chip with d links must get (N - 1) / d pieces over each, and the
chip with the fewest links sets the pace, unless a thin bridge does (`bounds.py`). Trees begin as shortest ways, every
chip taking, of the neighbours that are nearer to the root, the one over whose link the fewest pieces came so far. Then
chips whose links are unevenly used move to another parent, tree by tree, also over longer ways where a link would
otherwise stay the busiest of all. A reduce-scatter is the same trees, the other way.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshmend.base.kernels import kernel
from meshmend.mesh import Fabric
from meshmend.mesh.collectives.bounds import gather_bound
from meshmend.mesh.collectives.plan import CollectivePlan
from meshmend.mesh.planners.bound import live_neighbours
from meshmend.mesh.planners.plan import Plan, make_plan
from meshmend.mesh.planners.trees import spread

Ints = npt.NDArray[np.int64]
Ways = npt.NDArray[np.int8]
PASSES = 30
ENOUGH = 256
"""Trees, at least: a mesh of few chips gets several for each, so that rounding costs little."""


def plan_all_gather(mesh: Fabric) -> CollectivePlan:
    """Every chip gets the pieces of all chips."""
    return _plan(mesh, "all_gather", up=False)


def plan_reduce_scatter(mesh: Fabric) -> CollectivePlan:
    """Every chip gets its piece of the sum."""
    return _plan(mesh, "reduce_scatter", up=True)


def reduce_then_gather(mesh: Fabric) -> Plan:
    """An all-reduce that is a reduce-scatter and an all-gather, each chunk's broadcast right behind its reduction."""
    return make_plan(mesh, "scatter", np.ones(len(mesh.live)), spread(mesh, gathered(mesh, 1)))


def _plan(mesh: Fabric, collective: str, *, up: bool) -> CollectivePlan:
    chips = len(mesh.live)
    each = -(-ENOUGH // chips)
    trees = spread(mesh, gathered(mesh, each))
    root = np.repeat(mesh.live, each)
    none = np.full(trees.shape, -1, np.int8)
    group = np.where(mesh.alive, 0, -1).astype(np.int32)
    share = np.full(len(root), 1 / len(root))
    ups, downs = (trees, none) if up else (none, trees)
    return CollectivePlan(mesh, collective, group, share, root, ups, downs, len(root), gather_bound(mesh))


def gathered(mesh: Fabric, each: int) -> Ways:
    """[tree, live chip]: the way to the parent, `each` trees for every live chip in turn."""
    near, _ = live_neighbours(mesh)
    units = mesh.units.reshape(mesh.size, -1)[mesh.live]
    return np.asarray(_even_trees(near, units.astype(np.float64), each, PASSES))


@kernel
def _even_trees(near: Ints, units: npt.NDArray[np.float64], each: int, passes: int) -> Ways:
    """Shortest-way trees from every chip, evened out."""
    n, ways = near.shape
    trees = n * each
    up = np.full((trees, n), -1, np.int8)
    load = np.zeros((n, ways))  # pieces that reach a chip over the link in this way, over the link's speed
    far = np.zeros((n, n), np.int32)
    queue = np.zeros(n, np.int64)
    for root in range(n):
        far[root, :] = -1
        far[root, root] = 0
        queue[0] = root
        head, tail = 0, 1
        while head < tail:
            here = queue[head]
            head += 1
            for way in range(ways):
                there = near[here, way]
                if there >= 0 and far[root, there] < 0:
                    far[root, there] = far[root, here] + 1
                    queue[tail] = there
                    tail += 1
    for tree in range(trees):
        root = tree // each
        for chip in range(n):
            best = -1
            for way in range(ways):
                there = near[chip, way]
                if there < 0 or far[root, there] >= far[root, chip]:
                    continue
                if best < 0 or load[chip, way] + 1 / units[chip, way] < load[chip, best] + 1 / units[chip, best]:
                    best = way
            if best >= 0:
                up[tree, chip] = best
                load[chip, best] += 1 / units[chip, best]
    for turn in range(passes):
        busiest = load.max()
        moved = 0
        for tree in range(trees):
            root = tree // each
            for chip in range(n):
                old = up[tree, chip]
                if old < 0:
                    continue
                # Longer ways only for what is nearly the busiest link of all.
                longer = turn > 0 and load[chip, old] > 0.99 * busiest
                new = -1
                for way in range(ways):
                    there = near[chip, way]
                    if there < 0 or way == old:
                        continue
                    if far[root, there] > far[root, chip] and not longer:
                        continue
                    if load[chip, way] + 1 / units[chip, way] >= load[chip, old] - 1e-9:
                        continue
                    if new >= 0 and load[chip, way] >= load[chip, new]:
                        continue
                    # The new parent must not hang below this chip.
                    above = there
                    while above != root and above != chip:
                        above = near[above, up[tree, above]]
                    if above == root:
                        new = way
                if new >= 0:
                    load[chip, old] -= 1 / units[chip, old]
                    load[chip, new] += 1 / units[chip, new]
                    up[tree, chip] = new
                    moved += 1
        if moved == 0 and turn > 0:
            break
    return up
