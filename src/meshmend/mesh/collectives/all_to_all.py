"""All-to-all: every pair of chips has a path, and each chip's paths form trees.

Data for a chip goes along the tree of its sender, so a plan needs trees and no table of paths: a link carries a
tree's share once for each chip below it. Trees of shortest ways are grown one after another, each around the links
that are busy so far, and each sender's are grown again a few times around those of all others.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshmend.base.kernels import kernel
from meshmend.mesh import Fabric
from meshmend.mesh.collectives.bounds import exchange_bound
from meshmend.mesh.collectives.plan import CollectivePlan
from meshmend.mesh.planners.bound import live_neighbours
from meshmend.mesh.planners.trees import spread

Ints = npt.NDArray[np.int64]
Ways = npt.NDArray[np.int8]
EACH = 2
"""Trees of a sender: half of its data may go around the other side."""
ROUNDS = 8


def plan_all_to_all(mesh: Fabric) -> CollectivePlan:
    """Every chip sends 1/N of its payload to each chip."""
    chips = len(mesh.live)
    near, back = live_neighbours(mesh)
    units = mesh.units.reshape(mesh.size, -1)[mesh.live] / mesh.whole
    trees = spread(mesh, np.asarray(_around_each_other(near, back, units, EACH, ROUNDS)))
    group = np.where(mesh.alive, 0, -1).astype(np.int32)
    none = np.full(trees.shape, -1, np.int8)
    return CollectivePlan(
        mesh, "all_to_all", group, np.full(len(trees), 1 / chips / EACH), np.repeat(mesh.live, EACH), none, trees,
        chips * EACH, exchange_bound(mesh),
    )  # fmt: skip


@kernel
def _around_each_other(near: Ints, back: Ints, units: npt.NDArray[np.float64], each: int, rounds: int) -> Ways:
    """[sender and tree, chip]: ways to the parents, grown around the loads of all other trees."""
    n, ways = near.shape
    up = np.full((n * each, n), -1, np.int8)
    best_up = up.copy()
    best = np.inf
    load = np.zeros((n, ways))  # of the link over which a chip receives from this way, over its speed
    price = np.zeros((n, ways))
    far = np.zeros(n)
    below = np.zeros(n)
    order = np.zeros(n, np.int64)
    queue = np.zeros(n + 1, np.int64)
    waiting = np.zeros(n, np.bool_)
    degree = np.zeros(n, np.int64)
    for turn in range(rounds):
        for tree in range(n * each):
            # Senders take turns in an order that jumps across the mesh.
            tree = (tree * 7919) % (n * each) if (n * each) % 7919 else tree
            root = tree // each
            # Take this tree's own load away: leaves first.
            for again in range(2):
                if again == 1 or turn > 0:
                    degree[:] = 0
                    for chip in range(n):
                        if up[tree, chip] >= 0:
                            degree[near[chip, up[tree, chip]]] += 1
                    tail = 0
                    for chip in range(n):
                        below[chip] = 1.0
                        if degree[chip] == 0 and chip != root:
                            order[tail] = chip
                            tail += 1
                    head = 0
                    while head < tail:
                        chip = order[head]
                        head += 1
                        way = up[tree, chip]
                        parent = near[chip, way]
                        change = below[chip] / units[chip, way]
                        load[chip, way] += change if again == 1 else -change
                        below[parent] += below[chip]
                        degree[parent] -= 1
                        if degree[parent] == 0 and parent != root:
                            order[tail] = parent
                            tail += 1
                if again == 1:
                    break
                # Grow it again along the cheapest ways, where busy links cost more.
                busiest = max(1e-9, load.max())
                for chip in range(n):
                    for way in range(ways):
                        if near[chip, way] >= 0:
                            price[chip, way] = 1.0 + 4.0 * (load[chip, way] / busiest) ** 4
                far[:] = np.inf
                far[root] = 0.0
                queue[0] = root
                head, tail = 0, 1
                while head != tail:
                    here = queue[head]
                    head = (head + 1) % (n + 1)
                    waiting[here] = False
                    for way in range(ways):
                        there = near[here, way]
                        if there >= 0:
                            home = back[here, way]
                            if far[here] + price[there, home] < far[there] - 1e-12:
                                far[there] = far[here] + price[there, home]
                                up[tree, there] = home
                                if not waiting[there]:
                                    waiting[there] = True
                                    queue[tail] = there
                                    tail = (tail + 1) % (n + 1)
        if load.max() < best:
            best = load.max()
            best_up[:] = up
    return best_up
