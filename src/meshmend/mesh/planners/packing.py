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

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshmend.base.kernels import kernel
from meshmend.mesh import Fabric

Ints = npt.NDArray[np.int64]
Ways = npt.NDArray[np.int8]
Places = npt.NDArray[np.int32]
LARGE = 2048
"""Chips from which on a search need not look at every tree."""
ENOUGH = 1 << 15
"""Chips that a search looks at before it takes the best exchange so far: all that there are on small meshes."""


def number_links(mesh: Fabric) -> Ints:
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


class Net(NamedTuple):
    """The links between live chips, what room they have, and how many trees they are in."""

    near: Ints
    back: Ints
    number: Ints
    ends: Ints
    """[link]: one of its ends, as a chip and the way from it."""
    room: Ints
    load: Ints


class Work(NamedTuple):
    """Arrays that every search writes again: allocated once, which on large meshes takes longer than most searches."""

    order: Places
    stack: Places
    inside: npt.NDArray[np.bool_]
    longest: Places
    down: Places
    """The longest way down from each chip,"""
    second: Places
    """the longest through another child,"""
    through: Places
    """and the child through which the first goes."""
    outside: Places
    """The longest way that begins with the parent."""
    queue: Ints
    """Links."""
    came: Ints
    """[link]: the link that it would replace; -1 at the one where the search began, -2 where it has not been."""
    tree: Ints
    """[link]: the tree in which it would replace it."""


def balance(near: Ints, back: Ints, number: Ints, room: Ints, up: Ways, limit: int) -> int:
    """Exchange links of the trees `up`, in place, until none is in more trees than its room; move roots to the middle.

    Returns how much some link is over its room: 0 unless the room is below what so many trees need.
    """
    links, n = len(room), len(near)
    ends, load = _uses(near, number, up, links)
    net = Net(near, back, number, ends, room, load)
    order, stack, longest, down, second, through, outside = np.zeros((7, n), np.int32)
    queue, came, tree = np.zeros((3, links), np.int64)
    came[:] = -2
    work = Work(order, stack, np.zeros(n, bool), longest, down, second, through, outside, queue, came, tree)
    depth = _depths(near, back, up, work)
    over = net.load - room
    for level in range(int(over.max(initial=0)), 0, -1):
        for worst in np.flatnonzero(over >= level).tolist():
            limit = _relieve(net, up, depth, worst, level, limit, work)
    _centre(near, back, up, work)
    return max(0, int((net.load - room).max(initial=0)))


@kernel
def _uses(near: Ints, number: Ints, up: Ways, links: int) -> tuple[Ints, Ints]:
    """One end of each link, a chip and the way from it, and how many trees the link is in."""
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
    return ends, load


@kernel
def _gather(near: Ints, back: Ints, up: Ways, top: int, work: Work) -> int:
    """Put the chips of a tree that hang on `top` into `work.order`, parents before children; how many they are."""
    order, stack = work.order, work.stack
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
def _root(up: Ways) -> int:
    root = 0
    while up[root] >= 0:
        root += 1
    return root


@kernel
def _depths(near: Ints, back: Ints, up: Ways, work: Work) -> Places:
    """[tree, chip]: hops to the root."""
    depth = np.zeros(up.shape, np.int32)
    for tree in range(len(up)):
        for i in range(1, _gather(near, back, up[tree], _root(up[tree]), work)):
            chip = work.order[i]
            depth[tree, chip] = depth[tree, near[chip, up[tree, chip]]] + 1
    return depth


@kernel
def _longest_ways(near: Ints, up: Ways, count: int, work: Work) -> None:
    """work.longest[chip]: hops from each of the gathered chips to the farthest other of them, along the tree."""
    order, down, second, through, outside = work.order, work.down, work.second, work.through, work.outside
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
        work.longest[chip] = max(down[chip], outside[chip])


@kernel
def _lower_end(net: Net, up: Ways, link: int) -> int:
    """The end of a link that hangs on its other end in a tree; -1 if the tree does not use the link."""
    chip, way = net.ends[link, 0], net.ends[link, 1]
    if up[chip] == way:
        return int(chip)
    there = net.near[chip, way]
    return int(there) if up[there] == net.back[chip, way] else -1


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
def _search(net: Net, up: Ways, depth: Places, worst: int, limit: int, work: Work) -> tuple[int, int, int, int]:
    """Breadth first, the nearest exchange that ends in a link with room: that link, the one it replaces, the tree.

    The fourth number is how many links have a `work.came`, the first ones in the queue. No link: -1.
    """
    trees, (n, ways) = len(up), net.near.shape
    order, inside, queue, came = work.order, work.inside, work.queue, work.came
    came[worst] = -1
    queue[0] = worst
    head, tail, best, best_score, best_out, best_tree, looked = 0, 1, -1, 0, -1, -1, 0
    while head < tail and best < 0:
        out = queue[head]
        head += 1
        for step in range(trees):
            # A search that ends early begins with another tree each time, so that no tree bears all exchanges.
            tree = (worst + step) % trees if n > LARGE else step
            if best >= 0 and looked > ENOUGH:
                break
            top = _lower_end(net, up[tree], out)
            if top < 0:
                continue
            count = _gather(net.near, net.back, up[tree], top, work)
            looked += count
            _longest_ways(net.near, up[tree], count, work)
            for i in range(count):
                inside[order[i]] = True
            for i in range(count):
                chip = order[i]
                for way in range(ways):
                    there = net.near[chip, way]
                    if there < 0 or inside[there]:
                        continue
                    link = net.number[chip, way]
                    deep = depth[tree, there] + 1 + work.longest[chip]
                    if deep > limit or link == out:
                        continue
                    if net.load[link] < net.room[link]:
                        score = (net.load[link] - net.room[link]) * 100000 + deep
                        if best < 0 or score < best_score:
                            best, best_score, best_out, best_tree = link, score, out, tree
                    elif came[link] == -2:
                        came[link] = out
                        work.tree[link] = tree
                        queue[tail] = link
                        tail += 1
            for i in range(count):
                inside[order[i]] = False
    return best, best_out, best_tree, tail


@kernel
def _exchange(net: Net, up: Ways, depth: Places, into: int, out: int, work: Work) -> bool:
    """Put one link of a tree in another's place; False if it does not join the halves that are left."""
    top = _lower_end(net, up, out)
    if top < 0:
        return False
    count = _gather(net.near, net.back, up, top, work)
    for i in range(count):
        work.inside[work.order[i]] = True
    chip, way = net.ends[into, 0], net.ends[into, 1]
    here, there = work.inside[chip], work.inside[net.near[chip, way]]
    for i in range(count):
        work.inside[work.order[i]] = False
    if here == there:
        return False
    if not here:
        chip, way = net.near[chip, way], net.back[chip, way]
    net.load[out] -= 1
    net.load[into] += 1
    _hang(net.near, net.back, up, chip, way, top)
    for i in range(_gather(net.near, net.back, up, chip, work)):
        chip = work.order[i]
        depth[chip] = depth[net.near[chip, up[chip]]] + 1
    return True


@kernel
def _relieve(net: Net, up: Ways, depth: Places, worst: int, level: int, limit: int, work: Work) -> int:
    """Exchange a link until it is over its room by less than `level`, or cannot be; the limit of depth, as it now is.

    No exchange takes another link above its room, so that links that are over it only become fewer.
    """
    while net.load[worst] - net.room[worst] >= level:
        into, out, tree, touched = _search(net, up, depth, worst, limit, work)
        # The search used the trees as they were; after an exchange an earlier step may no longer fit. Stopping there
        # is safe: room has moved along the path, and the next search continues from there.
        while into >= 0 and _exchange(net, up[tree], depth[tree], into, out, work) and work.came[out] >= 0:
            into, out, tree = out, work.came[out], work.tree[out]
        for i in range(touched):
            work.came[work.queue[i]] = -2
        if into < 0:
            if limit >= up.shape[1]:
                break
            limit += max(1, limit // 4)
    return limit


@kernel
def _centre(near: Ints, back: Ints, up: Ways, work: Work) -> None:
    """Move the root of every tree to its middle."""
    for tree in range(len(up)):
        root = _root(up[tree])
        _longest_ways(near, up[tree], _gather(near, back, up[tree], root, work), work)
        middle = root
        for chip in range(len(near)):
            if work.longest[chip] < work.longest[middle]:
                middle = chip
        if middle != root:
            _hang(near, back, up[tree], middle, -1, root)
