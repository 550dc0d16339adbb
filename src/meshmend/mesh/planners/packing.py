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


@kernel
def balance(near: Ints, back: Ints, number: Ints, room: Ints, up: Ways, limit: int) -> int:
    """Exchange links of the trees `up`, in place, until none is in more trees than its room; move roots to the middle.

    Returns how much some link is over its room: 0 unless the room is below what so many trees need.
    """
    (trees, n), ways, links = up.shape, near.shape[1], len(room)
    load = np.zeros(links, np.int64)
    ends = np.zeros((links, 2), np.int64)  # a chip and the way from it
    for chip in range(n):
        for way in range(ways):
            if near[chip, way] >= 0:
                ends[number[chip, way], 0] = chip
                ends[number[chip, way], 1] = way
        for tree in range(trees):
            if up[tree, chip] >= 0:
                load[number[chip, up[tree, chip]]] += 1

    # Each tree in preorder: a chip's subtree is order[first : first + size].
    order = np.zeros((trees, n), np.int64)
    first = np.zeros((trees, n), np.int64)
    size = np.zeros((trees, n), np.int64)
    depth = np.zeros((trees, n), np.int64)
    stack = np.zeros(n, np.int64)
    high = np.zeros(n, np.int64)  # the two longest ways down from each chip, and through which child the first goes
    second = np.zeros(n, np.int64)
    through = np.zeros(n, np.int64)
    outside = np.zeros(n, np.int64)  # the longest way from each chip that begins with its parent, in the same subtree

    def walk(tree: int) -> None:
        top = 0
        for chip in range(n):
            if up[tree, chip] < 0:
                stack[0] = chip
                depth[tree, chip] = 0
                top = 1
        count = 0
        while top > 0:
            top -= 1
            chip = stack[top]
            order[tree, count] = chip
            first[tree, chip] = count
            size[tree, chip] = 1
            count += 1
            for way in range(ways):
                child = near[chip, way]
                if child >= 0 and up[tree, child] == back[chip, way]:
                    depth[tree, child] = depth[tree, chip] + 1
                    stack[top] = child
                    top += 1
        for i in range(n - 1, 0, -1):
            chip = order[tree, i]
            size[tree, near[chip, up[tree, chip]]] += size[tree, chip]

    def measure(tree: int, top: int) -> None:
        begin, end = first[tree, top], first[tree, top] + size[tree, top]
        for i in range(begin, end):
            chip = order[tree, i]
            high[chip], second[chip], through[chip] = 0, 0, -1
        for i in range(end - 1, begin, -1):
            chip = order[tree, i]
            parent = near[chip, up[tree, chip]]
            way_down = high[chip] + 1
            if way_down > high[parent]:
                second[parent], high[parent], through[parent] = high[parent], way_down, chip
            elif way_down > second[parent]:
                second[parent] = way_down
        outside[top] = 0
        for i in range(begin + 1, end):
            chip = order[tree, i]
            parent = near[chip, up[tree, chip]]
            other = second[parent] if through[parent] == chip else high[parent]
            outside[chip] = 1 + max(other, outside[parent])

    def lower_end(tree: int, link: int) -> int:
        chip, way = ends[link, 0], ends[link, 1]
        if up[tree, chip] == way:
            return int(chip)
        if up[tree, near[chip, way]] == back[chip, way]:
            return int(near[chip, way])
        return -1

    def hang(tree: int, chip: int, way: int, top: int) -> None:
        # Turn the path from chip to top round and hang it on chip's neighbour in this way (-1: chip becomes the root).
        while True:
            old = up[tree, chip]
            up[tree, chip] = way
            if chip == top:
                break
            chip, way = near[chip, old], back[chip, old]
        walk(tree)

    for tree in range(trees):
        walk(tree)
    came = np.zeros(links, np.int64)
    through_tree = np.zeros(links, np.int64)
    queue = np.zeros(links, np.int64)
    hopeless = np.zeros(links, np.bool_)
    while True:
        worst, most = -1, 0
        for link in range(links):
            if load[link] - room[link] > most and not hopeless[link]:
                worst, most = link, load[link] - room[link]
        if worst < 0:
            break
        came[:] = -2
        came[worst] = -1
        queue[0] = worst
        head, tail, best, best_score, best_out, best_tree = 0, 1, -1, 0, -1, -1
        while head < tail and best < 0:
            out = queue[head]
            head += 1
            for tree in range(trees):
                top = lower_end(tree, out)
                if top < 0:
                    continue
                begin, end = first[tree, top], first[tree, top] + size[tree, top]
                measure(tree, top)
                for i in range(begin, end):
                    chip = order[tree, i]
                    for way in range(ways):
                        there = near[chip, way]
                        if there < 0 or begin <= first[tree, there] < end:
                            continue
                        link = number[chip, way]
                        deep = depth[tree, there] + 1 + max(high[chip], outside[chip])
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
        if best < 0:
            if limit < n:
                limit += max(1, limit // 4)
            else:
                hopeless[worst] = True
            continue
        into, out, tree = best, best_out, best_tree
        while True:
            # The search used the trees as they were; after an exchange an earlier step may no longer fit. Stopping
            # there is safe: room has moved along the path, and the next search continues from there.
            top = lower_end(tree, out)
            if top < 0:
                break
            begin, end = first[tree, top], first[tree, top] + size[tree, top]
            chip, way = ends[into, 0], ends[into, 1]
            inside = begin <= first[tree, chip] < end
            if inside == (begin <= first[tree, near[chip, way]] < end):
                break
            if not inside:
                chip, way = near[chip, way], back[chip, way]
            load[out] -= 1
            load[into] += 1
            hang(tree, chip, way, top)
            if came[out] < 0:
                break
            into, out, tree = out, came[out], through_tree[out]
    for tree in range(trees):
        root = order[tree, 0]
        measure(tree, root)
        middle = root
        for chip in range(n):
            if max(high[chip], outside[chip]) < max(high[middle], outside[middle]):
                middle = chip
        if middle != root:
            hang(tree, middle, -1, root)
    return max(0, int((load - room).max()))
