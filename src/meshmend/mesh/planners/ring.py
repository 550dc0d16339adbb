"""One ring through every live chip, run in both directions at once: the 1-D scheme of arXiv 2011.03605.

Finding the ring (a Hamiltonian cycle) goes from the certain to the likely: reasons that forbid one; a **cover** of the
chips by loops, two ring links per chip, begun from the 2x2 boards; loops joined where they share a unit square; and
last a seeded search that breaks a ring link and repairs the cover another way.

    +--+  +--+      +--+--+--+
    |  |  |  |      |        |      two loops hold opposite sides of a unit square:
    +--+  +--+      +--+--+--+      swap the square's sides and they are one
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import numpy.typing as npt

from meshmend.errors import NoRing
from meshmend.mesh import Mesh
from meshmend.mesh.grid import E, S, opposite
from meshmend.mesh.planners.base import Planner
from meshmend.mesh.planners.plan import Plan, make_plan

Ends = tuple[int, int]
"""A link, by the chips it joins."""

MOST_ROOTS = 1024
"""Up to this many live chips, every chip is a root in each direction."""
FEWER_ROOTS = 256
"""Roots in each direction on bigger meshes."""
STARTS = 8
"""Covers that the search begins from: after four every shift of the boards has had its turn."""
TRIES = 500
"""Links that the search breaks in each. Where a ring exists a dozen nearly always do; of 25,000 random meshes with one
the worst needed a second start. All starts together take about a second on 16x32."""
ORDERS = tuple(permutations(range(4)))
"""The orders in which to look at a chip's four links."""
INSTEAD = 'algorithm="trees" works on any connected mesh'


def ring(mesh: Mesh) -> Plan:
    """Plan the all-reduce around a Hamiltonian ring, half the payload in each direction (arXiv 2011.03605).

    A root's up path comes around the ring and ends at the root; its down path continues in the same direction. With all
    P chips as roots a ring link carries (P - 1) / P of the payload each way, so algbw is P / (P - 1), about 1.0 B.
    Reducing everything before broadcasting would load the links the same: here overlap neither costs nor gains.

    Raises `NoRing` and `Disconnected` as `find_ring` does.
    """
    order = find_ring(mesh)
    # Every chip of 4096 as a root would be 64 MiB of trees, and gigabytes to add up their load. With fewer
    # roots a link carries at most the whole payload instead of (P - 1) / P of it: under 0.1 % more.
    count = len(order) if len(order) <= MOST_ROOTS else FEWER_ROOTS
    roots = order[np.arange(count) * len(order) // count]
    ahead = np.argmax(mesh.neighbour[order] == np.roll(order, -1)[:, None], axis=1).astype(np.int8)
    trees = np.full((2, count, mesh.size), -1, np.int8)
    trees[0][:, order] = ahead
    trees[1][:, order] = opposite(np.roll(ahead, 1))
    trees[:, np.arange(count), roots] = -1
    up, down = trees.reshape(2 * count, -1), trees[::-1].reshape(2 * count, -1)
    return make_plan(mesh, "ring", np.ones(2 * count), up, down)


def find_ring(mesh: Mesh) -> npt.NDArray[np.int32]:
    """The live chips in ring order: a live link joins each to the next, and the last to the first.

    On even sides, where the dead chips are whole aligned 2x2 boards and no link is dead, the loops are the live boards,
    and joining them walks around a spanning tree of boards: that always succeeds, at once. The same mesh gives the same
    ring everywhere.

    Raises `NoRing`, with `proven=True` where the reason it gives forbids a ring and `proven=False` where the search
    gave up, and `Disconnected` where the live chips are disconnected.
    """
    mesh.require_connected()
    _require_no_obstacle(mesh)
    for start in range(STARTS):
        cover = _Cover(mesh, start)
        starved = cover.complete()
        if starved:
            _require_links_for(mesh, starved)
            continue
        cover.join()
        if cover.search():
            return _checked(mesh, cover.loops()[0])
    raise NoRing(
        f"found no ring through all {len(mesh.live)} live chips of {mesh} and no reason that forbids one: "
        f"the search gave up after {STARTS} starts of up to {TRIES} tries; {INSTEAD}",
        proven=False,
    )


class _Cover:
    """Ring links chosen so far, at most two per chip; once every chip has two, they form loops.

    `links[chip]` lists the chips at the other ends of its ring links. The links change along **trails** in which free
    links and ring links alternate, as the augmenting paths of maximum flow do, so that no chip gets a third one.
    """

    def __init__(self, mesh: Mesh, seed: int) -> None:
        """Begin from what lives of the 2x2 boards, shifted by a row or a column or both as the seed says."""
        self.rng = np.random.default_rng(seed)
        self.live: list[int] = mesh.live.tolist()
        self.near: list[list[int]] = mesh.neighbour.tolist()
        self.links: list[list[int]] = [[] for _ in self.near]
        for chip in self.live:
            row, col = mesh.chip(chip)
            east, south = self.near[chip][E], self.near[chip][S]
            if east > chip and (col + seed) % 2 == 0:
                self.swap([(chip, east)])
            if south > chip and (row + seed // 2) % 2 == 0:
                self.swap([(chip, south)])

    def swap(self, trail: list[Ends]) -> None:
        """Make ring links of the free links given, and free links of the ring links."""
        for a, b in trail:
            for here, there in ((a, b), (b, a)):
                if there in self.links[here]:
                    self.links[here].remove(there)
                else:
                    self.links[here].append(there)

    def complete(self) -> list[int]:
        """Give every chip two ring links and return []; else return chips that compete for too few links.

        Meshes that can be coloured like a chessboard have a trail wherever a full cover exists (it is maximum flow),
        so failing there proves that there is none. On odd tori a trail may be missed.
        """
        for chip in self.live:
            while len(self.links[chip]) < 2:
                trail, reached = self.trail(chip)
                if not trail:
                    return reached
                self.swap(trail)
        return []

    def trail(self, start: int, banned: int = -1) -> tuple[list[Ends], list[int]]:
        """A shortest trail from a chip that lacks a ring link to another such, without the link from start to banned.

        Returns the trail, empty if none was found, and the chips that could pass the want of a link on to others.
        """
        order = ORDERS[self.rng.integers(len(ORDERS))]
        asker: dict[int, int] = {}  # asker[b] = a: a lacks a ring link and asks for its free link with b
        leaver = {start: -1}  # leaver[c] = b: b gives up its ring link with c for that, so now c lacks one
        wanting = [start]
        for chip in wanting:
            for end in (self.near[chip][way] for way in order):
                if end < 0 or end in asker or end in self.links[chip] or (chip == start and end == banned):
                    continue
                asker[end] = chip
                if len(self.links[end]) + (end == start) < 2:
                    trail = [(chip, end)]
                    while (through := leaver[trail[-1][0]]) >= 0:
                        trail += [(through, trail[-1][0]), (asker[through], through)]
                    # On an odd torus a trail may come back over its own links: that is none.
                    if len({frozenset(link) for link in trail}) == len(trail):
                        return trail, wanting
                for other in self.links[end]:
                    if other not in leaver:
                        leaver[other] = end
                        wanting.append(other)
        return [], wanting

    def loops(self) -> list[list[int]]:
        """The loops of a full cover, each as its chips in order."""
        seen = [False] * len(self.links)
        loops = []
        for chip in self.live:
            loop: list[int] = []
            before = -1
            while not seen[chip]:
                seen[chip] = True
                loop.append(chip)
                one, two = self.links[chip]
                chip, before = two if one == before else one, chip
            if loop:
                loops.append(loop)
        return loops

    def join(self) -> None:
        """Join loops that hold opposite sides of a unit square."""
        leader = list(range(len(self.links)))
        for loop in self.loops():
            for chip in loop:
                leader[chip] = loop[0]

        def leader_of(chip: int) -> int:
            while leader[chip] != chip:
                leader[chip] = chip = leader[leader[chip]]
            return chip

        for a in self.live:
            b, c = self.near[a][E], self.near[a][S]
            d = self.near[b][S] if b >= 0 and c >= 0 else -1
            if d < 0 or self.near[c][E] != d:
                continue
            sides = [(a, b), (c, d), (a, c), (b, d)]
            held = [there in self.links[here] for here, there in sides]
            one, other = leader_of(a), leader_of(d)
            if held[0] == held[1] != held[2] == held[3] and one != other:
                self.swap(sides)
                leader[one] = other

    def search(self) -> bool:
        """Break ring links and repair the cover another way until one loop is left; False when out of tries.

        A repair is kept unless it makes more loops, so the cover wanders among those with equally many.
        """
        loops = self.loops()
        for _ in range(TRIES):
            if len(loops) == 1:
                return True
            loop = loops[self.rng.integers(len(loops))]
            chip = loop[self.rng.integers(len(loop))]
            broken = chip, self.links[chip][self.rng.integers(2)]
            self.swap([broken])
            trail, _ = self.trail(*broken)
            self.swap(trail)
            mended = self.loops() if trail else []
            if trail and len(mended) <= len(loops):
                loops = mended
            else:
                self.swap([*trail, broken])
        return len(loops) == 1


def _require_no_obstacle(mesh: Mesh) -> None:
    """Raise `NoRing` for the reasons that need no search."""
    import rustworkx

    if len(mesh.live) < 3:
        raise _forbidden(mesh, f"a ring needs at least 3 live chips, and {len(mesh.live)} is all there is")
    ends = mesh.live[(mesh.neighbour[mesh.live] >= 0).sum(1) < 2]
    if len(ends):
        raise _forbidden(mesh, f"chip {_names(mesh, ends[:1])} has one live link, and a ring needs two at each chip")
    graph: rustworkx.PyGraph[int, None] = rustworkx.PyGraph()
    graph.add_nodes_from(range(mesh.size))
    graph.add_edges_from_no_data([(int(chip), int(mesh.neighbour[chip, way])) for chip, way in mesh.links])
    cuts = rustworkx.articulation_points(graph)
    if cuts:
        cut = min(cuts)
        sizes = " and ".join(str(len(part)) for part in mesh.fail(mesh.chip(cut)).components)
        raise _forbidden(
            mesh, f"every way between parts of {sizes} chips leads through chip {_names(mesh, [cut])}, but only once"
        )
    colour = rustworkx.two_color(graph)
    if colour:
        whites = sum(colour[chip] for chip in mesh.live.tolist())
        blacks = len(mesh.live) - whites
        if whites != blacks:
            raise _forbidden(
                mesh,
                f"coloured like a chessboard it has {blacks} live chips of one colour and {whites} of the other, "
                "and a ring takes turns between the two",
            )


def _require_links_for(mesh: Mesh, starved: list[int]) -> None:
    """Raise `NoRing` if these chips, together, cannot get two ring links each."""
    inside = np.zeros(mesh.size + 1, bool)  # the last stands for "no neighbour", -1
    inside[starved] = True

    def offered() -> int:
        """The most ends of ring links these chips can get: from a chip outside two at most."""
        given = inside[mesh.neighbour].sum(1)
        return int(np.where(inside[:-1], given, np.minimum(given, 2)).sum())

    if offered() >= 2 * inside.sum():
        return
    for chip in reversed(starved):  # A smaller proof is easier to see: leave out every chip it can do without.
        inside[chip] = False
        inside[chip] = offered() >= 2 * inside.sum()
    chips = np.flatnonzero(inside)
    raise _forbidden(
        mesh,
        f"the {len(chips)} chips {_names(mesh, chips)} need {2 * len(chips)} ends of ring links "
        f"and can get at most {offered()}",
    )


def _forbidden(mesh: Mesh, reason: str) -> NoRing:
    return NoRing(f"no ring goes through all live chips of {mesh}: {reason}; {INSTEAD}", proven=True)


def _names(mesh: Mesh, chips: npt.ArrayLike) -> str:
    """Chips as `row,col`, at most eight of them."""
    names = [mesh.name(chip) for chip in np.asarray(chips)]
    return " ".join(names[:8] + ["…"] * (len(names) > 8))


def _checked(mesh: Mesh, chips: list[int]) -> npt.NDArray[np.int32]:
    """The ring as an array, after making sure that it is one: a wrong ring would give wrong sums."""
    order = np.array(chips, np.int32)
    linked = (mesh.neighbour[order] == np.roll(order, -1)[:, None]).any(1)
    if not linked.all() or not np.array_equal(np.sort(order), mesh.live):
        raise AssertionError(f"meshmend found an invalid ring on {mesh}, which is a bug: please report it")
    return order


PLANNER = Planner(name="ring", make=ring, paper="2011.03605", through_switch=True)
