"""Many spanning trees at once, so that no link is used by more of them than it has room for.

Trees start as good shapes (see `trees.py`) whose links are unevenly used. While some link has too many, it is
exchanged: taking a link out of a tree leaves two halves, and any other link between the halves repairs it. If none of
those has room, one of them is taken out of another tree in turn, and so on, breadth first. That is the augmenting
path of matroid union (Edmonds 1968; Roskind and Tarjan 1985 for trees), so if there are no more trees than the strength
of the links' room allows (`bound.py`), a way always exists. Exchanges that would make a tree deeper than `limit` are
passed over while others exist.

Trees here are arrays over the live chips without gaps (`live_neighbours`), holding the way to each chip's parent, and
`back` is the way that leads back over each link.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshmend.base.kernels import kernel
from meshmend.mesh import Mesh

Ints = npt.NDArray[np.int64]
Ways = npt.NDArray[np.int8]
Places = npt.NDArray[np.int32]
LARGE = 2048
"""Chips from which on a search need not look at every tree."""
ENOUGH = 1 << 15
"""Chips that a search looks at before it takes the best exchange so far: all that there are on small meshes."""


def number_links(mesh: Mesh) -> Ints:
    """A number for each undirected link, looked up by [live chip, way] at both its ends; -1 where there is none."""
    number = np.full(mesh.link_numbers, -1, np.int64)
    there = mesh.link_number(mesh.links[:, 0], mesh.links[:, 1])
    number[there] = number[mesh.reverse[there]] = np.arange(len(mesh.links))
    return number.reshape(mesh.size, -1)[mesh.live]


@kernel
def grow(near: Ints, back: Ints, root: int, cost: Ints) -> Ways:
    """The tree of cheapest ways to the root, where leaving a chip in a way costs `cost[chip, way]`."""
    n, ways = near.shape
    far = np.full(n, 1 << 60, np.int64)
    up = np.full(n, -1, np.int8)
    waiting = np.zeros(n, np.bool_)
    queue = np.zeros(n + 1, np.int64)
    queue[0] = root
    far[root] = 0
    head, tail = 0, 1
    while head != tail:
        here = queue[head]
        head = (head + 1) % (n + 1)
        waiting[here] = False
        for way in range(ways):
            there, home = near[here, way], back[here, way]
            if there >= 0 and far[here] + cost[there, home] < far[there]:
                far[there] = far[here] + cost[there, home]
                up[there] = home
                if not waiting[there]:
                    waiting[there] = True
                    queue[tail] = there
                    tail = (tail + 1) % (n + 1)
    return up


def balance(near: Ints, back: Ints, number: Ints, room: Ints, up: Ways, limit: int) -> int:
    """Exchange links of the trees `up`, in place, until none is in more trees than its room; move roots to the middle.

    Returns how much some link is over its room: 0 unless the room is below what so many trees need.
    """
    load, ends = _uses(near, number, up, len(room))
    depth = _depths(near, back, up)
    over = load - room
    for level in range(int(over.max(initial=0)), 0, -1):
        for worst in np.flatnonzero(over >= level).tolist():
            limit = _relieve(near, back, number, ends, room, load, up, depth, worst, level, limit)
    _centre(near, back, up)
    return max(0, int((load - room).max()))


@kernel
def _uses(near: Ints, number: Ints, up: Ways, links: int) -> tuple[Ints, Ints]:
    """How many trees each link is in, and one of its ends: a chip and the way from it."""
    (trees, n), ways = up.shape, near.shape[1]
    load = np.zeros(links, np.int64)
    ends = np.zeros((links, 2), np.int64)
    for chip in range(n):
        for way in range(ways):
            if near[chip, way] >= 0:
                ends[number[chip, way], 0] = chip
                ends[number[chip, way], 1] = way
        for tree in range(trees):
            if up[tree, chip] >= 0:
                load[number[chip, up[tree, chip]]] += 1
    return load, ends


@kernel
def _gather(near: Ints, back: Ints, up: Ways, top: int, order: Places, stack: Places) -> int:
    """Put the chips of a tree that hang on `top` into `order`, parents before children; how many they are."""
    stack[0] = top
    waiting, count = 1, 0
    while waiting > 0:
        waiting -= 1
        chip = stack[waiting]
        order[count] = chip
        count += 1
        for way in range(near.shape[1]):
            child = near[chip, way]
            if child >= 0 and up[child] == back[chip, way]:
                stack[waiting] = child
                waiting += 1
    return count


@kernel
def _depths(near: Ints, back: Ints, up: Ways) -> Places:
    """[tree, chip]: hops to the root."""
    trees, n = up.shape
    depth = np.zeros((trees, n), np.int32)
    order, stack = np.zeros(n, np.int32), np.zeros(n, np.int32)
    for tree in range(trees):
        root = 0
        while up[tree, root] >= 0:
            root += 1
        for i in range(1, _gather(near, back, up[tree], root, order, stack)):
            depth[tree, order[i]] = depth[tree, near[order[i], up[tree, order[i]]]] + 1
    return depth


@kernel
def _longest_ways(near: Ints, up: Ways, order: Places, count: int, longest: Places, work: Places) -> None:
    """longest[chip]: hops from each of the gathered chips to the farthest other of them, along the tree."""
    down, second = work[0], work[1]  # the two longest ways down from each chip,
    through = work[2]  # and through which child the first goes
    outside = work[3]  # the longest way that begins with the parent
    for i in range(count):
        down[order[i]], second[order[i]], through[order[i]], outside[order[i]] = 0, 0, -1, 0
    for i in range(count - 1, 0, -1):
        chip = order[i]
        parent, way_down = near[chip, up[chip]], down[chip] + 1
        if way_down > down[parent]:
            second[parent], down[parent], through[parent] = down[parent], way_down, chip
        elif way_down > second[parent]:
            second[parent] = way_down
    for i in range(count):
        chip = order[i]
        if i > 0:
            parent = near[chip, up[chip]]
            other = second[parent] if through[parent] == chip else down[parent]
            outside[chip] = 1 + max(other, outside[parent])
        longest[chip] = max(down[chip], outside[chip])


@kernel
def _lower_end(near: Ints, back: Ints, up: Ways, chip: int, way: int) -> int:
    """The end of a link that hangs on its other end in a tree; -1 if the tree does not use the link."""
    if up[chip] == way:
        return chip
    there = near[chip, way]
    return there if up[there] == back[chip, way] else -1


@kernel
def _hang(near: Ints, back: Ints, up: Ways, chip: int, way: int, top: int) -> None:
    """Turn the path from chip to top round and hang it on chip's neighbour in this way (-1: chip becomes the root)."""
    while True:
        old = up[chip]
        up[chip] = way
        if chip == top:
            break
        chip, way = near[chip, old], back[chip, old]


@kernel
def _search(
    near: Ints, back: Ints, number: Ints, ends: Ints, room: Ints, load: Ints, up: Ways, depth: Places, worst: int,
    limit: int, came: Ints, through_tree: Ints,
) -> tuple[int, int, int]:  # fmt: skip
    """Breadth first, the nearest exchange that ends in a link with room: (that link, the one it replaces, the tree).

    `came[link]` is the link that this one would replace in `through_tree[link]`, and so on up to the worst. No link:
    (-1, -1, -1).
    """
    (trees, n), ways = up.shape, near.shape[1]
    queue = np.empty(len(room), np.int64)
    order, stack, longest = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
    work = np.empty((4, n), np.int32)
    inside = np.full(n, -1, np.int32)
    stamp, looked = 0, 0
    came[:] = -2
    came[worst] = -1
    queue[0] = worst
    head, tail, best, best_score, best_out, best_tree = 0, 1, -1, 0, -1, -1
    while head < tail and best < 0:
        out = queue[head]
        head += 1
        for step in range(trees):
            # Where many trees use the link, each search begins with another one, so that none bears all exchanges.
            tree = (worst + step) % trees if n > LARGE else step
            if best >= 0 and looked > ENOUGH:
                break
            top = _lower_end(near, back, up[tree], ends[out, 0], ends[out, 1])
            if top < 0:
                continue
            count = _gather(near, back, up[tree], top, order, stack)
            looked += count
            stamp += 1
            for i in range(count):
                inside[order[i]] = stamp
            _longest_ways(near, up[tree], order, count, longest, work)
            for i in range(count):
                chip = order[i]
                for way in range(ways):
                    there = near[chip, way]
                    if there < 0 or inside[there] == stamp:
                        continue
                    link = number[chip, way]
                    deep = depth[tree, there] + 1 + longest[chip]
                    if deep > limit or link == out:
                        continue
                    if load[link] < room[link]:
                        score = (load[link] - room[link]) * 100000 + deep
                        if best < 0 or score < best_score:
                            best, best_score, best_out, best_tree = link, score, out, tree
                    elif came[link] == -2:
                        came[link] = out
                        through_tree[link] = tree
                        queue[tail] = link
                        tail += 1
    return best, best_out, best_tree


@kernel
def _relieve(
    near: Ints, back: Ints, number: Ints, ends: Ints, room: Ints, load: Ints, up: Ways, depth: Places, worst: int,
    level: int, limit: int,
) -> int:  # fmt: skip
    """Exchange a link until it is over its room by less than `level`, or cannot be; the limit of depth, as it now is.

    No exchange takes another link above its room, so that links that are over it only become fewer.
    """
    n = up.shape[1]
    came, through_tree = np.zeros(len(room), np.int64), np.zeros(len(room), np.int64)
    order, stack = np.zeros(n, np.int32), np.zeros(n, np.int32)
    inside = np.zeros(n, np.bool_)
    while load[worst] - room[worst] >= level:
        into, out, tree = _search(
            near, back, number, ends, room, load, up, depth, worst, limit, came, through_tree
        )  # fmt: skip
        if into < 0:
            if limit >= n:
                break
            limit += max(1, limit // 4)
            continue
        while True:
            # The search used the trees as they were; after an exchange an earlier step may no longer fit. Stopping
            # there is safe: room has moved along the path, and the next search continues from there.
            top = _lower_end(near, back, up[tree], ends[out, 0], ends[out, 1])
            if top < 0:
                break
            count = _gather(near, back, up[tree], top, order, stack)
            for i in range(count):
                inside[order[i]] = True
            chip, way = ends[into, 0], ends[into, 1]
            here, there = inside[chip], inside[near[chip, way]]
            for i in range(count):
                inside[order[i]] = False
            if here == there:
                break
            if not here:
                chip, way = near[chip, way], back[chip, way]
            load[out] -= 1
            load[into] += 1
            _hang(near, back, up[tree], chip, way, top)
            for i in range(_gather(near, back, up[tree], chip, order, stack)):
                depth[tree, order[i]] = depth[tree, near[order[i], up[tree, order[i]]]] + 1
            if came[out] < 0:
                break
            into, out, tree = out, came[out], through_tree[out]
    return limit


@kernel
def _centre(near: Ints, back: Ints, up: Ways) -> None:
    """Move the root of every tree to its middle."""
    trees, n = up.shape
    order, stack, longest = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
    work = np.empty((4, n), np.int32)
    for tree in range(trees):
        root = 0
        while up[tree, root] >= 0:
            root += 1
        count = _gather(near, back, up[tree], root, order, stack)
        _longest_ways(near, up[tree], order, count, longest, work)
        middle = root
        for chip in range(n):
            if longest[chip] < longest[middle]:
                middle = chip
        if middle != root:
            _hang(near, back, up[tree], middle, -1, root)
