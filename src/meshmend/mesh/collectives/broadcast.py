"""Broadcast: as many arc-disjoint trees from the root as the least cut has links, which no plan can beat.

Edmonds (1973) proved that they exist; Lovász (1976) how to find them. Grow one tree from the root, and add a link only
if what is left still has, for every chip, as many disjoint ways from the root as there are trees to come. That can fail
for a link only because of a cut between its two ends that has nothing to spare, so one flow for each link decides.
The next link is tried at the chips nearest to the root first, which keeps trees shallow.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshmend.base.kernels import kernel
from meshmend.mesh import Fabric
from meshmend.mesh.collectives.bounds import broadcast_bound, least_cuts
from meshmend.mesh.collectives.plan import CollectivePlan
from meshmend.mesh.planners.bound import live_neighbours
from meshmend.mesh.planners.trees import spread

Ints = npt.NDArray[np.int64]
Ways = npt.NDArray[np.int8]
FINEST = 12
"""Trees that may share a whole link. Speeds that would need more are rounded down."""


def plan_broadcast(mesh: Fabric, root: int) -> CollectivePlan:
    """Every chip gets the payload of the root."""
    limit = broadcast_bound(mesh, root)
    near, back = live_neighbours(mesh)
    place = int(mesh.place[root])
    fine = mesh.whole if mesh.whole <= FINEST else FINEST
    room = (mesh.units * fine // mesh.whole).reshape(mesh.size, -1)[mesh.live]
    room = np.where(near >= 0, np.maximum(room, 1), 0)  # a link slower than the finest part still joins its ends
    count = int(least_cuts(near, back, room, place, np.arange(len(near)))[0].min()) if len(near) > 1 else 1
    trees = spread(mesh, np.asarray(_arborescences(near, back, room, place, count)))
    roots = np.full(count, root, np.int32)
    none = np.full(trees.shape, -1, np.int8)
    group = np.where(mesh.alive, 0, -1).astype(np.int32)
    return CollectivePlan(mesh, "broadcast", group, np.full(count, 1 / count), roots, none, trees, count, limit)


@kernel
def _arborescences(near: Ints, back: Ints, room: Ints, root: int, count: int) -> Ways:
    """So many trees, as the way to each chip's parent; a link is in no more of them, each way, than its room.

    `left[chip, way]` is how many more trees may have the chip's parent in that way.
    """
    n, ways = near.shape
    up = np.full((count, n), -1, np.int8)
    left = room.copy()
    flow = np.zeros((n, ways), np.int64)
    came = np.zeros(n, np.int64)
    queue = np.zeros(n, np.int64)
    seen = np.zeros(n, np.bool_)
    order = np.zeros(n, np.int64)
    for tree in range(count):
        need = count - tree  # ways that every chip has now; after this tree it must have one less
        inside = np.zeros(n, np.bool_)
        inside[root] = True
        order[0] = root
        size = 1
        while size < n:
            # From the chips nearest to the root on: a link refused now may do later, when more chips are inside.
            at = 0
            before = size
            while at < size:
                parent = order[at]
                at += 1
                for turn in range(ways):
                    out = (turn + tree) % ways
                    chip = near[parent, out]
                    if chip < 0 or inside[chip]:
                        continue
                    way = back[parent, out]
                    if left[chip, way] == 0:
                        continue
                    # Ways from the chip to the root or to the parent, this link included: if there are `need`, every
                    # set with the chip in it and the parent outside keeps enough.
                    flow[:] = 0
                    total = 0
                    while total < need and need > 1:
                        seen[:] = False
                        seen[chip] = True
                        queue[0] = chip
                        head, tail, end = 0, 1, -1
                        while head < tail and end < 0:
                            here = queue[head]
                            head += 1
                            for w in range(ways):
                                there = near[here, w]
                                if there >= 0 and not seen[there] and left[here, w] > flow[here, w]:
                                    seen[there] = True
                                    came[there] = back[here, w]
                                    if there in (root, parent):
                                        end = there
                                        break
                                    queue[tail] = there
                                    tail += 1
                        if end < 0:
                            break
                        here = end
                        while here != chip:
                            there = near[here, came[here]]
                            flow[there, back[here, came[here]]] += 1
                            flow[here, came[here]] -= 1
                            here = there
                        total += 1
                    if need == 1 or total == need:
                        inside[chip] = True
                        order[size] = chip
                        size += 1
                        up[tree, chip] = way
                        left[chip, way] -= 1
            if size == before:
                return up  # cannot be: Lovász's theorem; the proof of the plan would refuse it
    return up
