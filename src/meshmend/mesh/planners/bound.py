"""The exact upper bound on any plan, with the partition that proves it.

Cut the live chips into parts. Each unit of payload needs, in each direction, at least `parts - 1` crossings between
parts (every part but one must send its sum out, and get the result back), and all links between parts carry B each
way, so

    algbw <= B * (links between parts) / (parts - 1)          for every partition,

where a slow link counts as the part of a link that it is.

The least such ratio is the graph's fractional strength, and a packing of spanning trees reaches it (Tutte 1961;
Nash-Williams 1961), so the bound is tight. Single chips as parts are often the worst cut, but not always: a dangling
chip or a thin bridge is worse.

To find it: Newton's iteration on the ratio p/q (as Cunningham 1985 does). For each p/q the partition that minimises
`q * links - p * parts` comes from a Dilworth truncation, computed here like a pebble game: chips are added one by one,
every link's q units (of a slow link, its part of them) are assigned to its two ends, and each chip gets the least
capacity z with `z(S) >= q * links inside S + p` for all sets S of chips so far. A chip that cannot push its units away
has found a tight set, which becomes one part. All numbers are integers, so the result is exact.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from meshmend.base.kernels import kernel
from meshmend.base.units import agree
from meshmend.mesh import Fabric
from meshmend.mesh.notation import speed_text

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Bound:
    """`links / (parts - 1)`: what no plan on this mesh can pass, in units of B."""

    mesh: Fabric = field(repr=False)
    links: Fraction
    """Live links between the parts, slow ones as the part of a link that they are."""
    parts: int
    part: npt.NDArray[np.int32] = field(repr=False)
    """The certificate: each chip's part, -1 at dead chips."""

    @property
    def fraction(self) -> Fraction:
        """The bound as an exact fraction (of a mesh of two chips or more)."""
        return self.links / (self.parts - 1)

    @property
    def value(self) -> float:
        """The bound as a number; infinite for a single chip, which needs no sum."""
        return float(self.fraction) if self.parts > 1 else float("inf")

    @property
    def reason(self) -> str:
        """The cut that proves the bound, in words."""
        if self.parts == 1:
            return "one chip has nothing to sum"
        whole = len(self.mesh.live)
        dangling = np.flatnonzero((self.mesh.neighbour >= 0).sum(1) == 1)
        if self.value == 1 and len(dangling):
            more = f" (and {len(dangling) - 1} more like it)" if len(dangling) > 1 else ""
            return f"chip {self.mesh.name(dangling[0])}{more} has one live link, which caps every plan at 1.0 B"
        links = speed_text(self.links)
        if self.parts == whole and self.mesh.even:
            return f"{links} live links, and {whole - 1} of them in every spanning tree of {whole} chips"
        if self.parts == whole:
            return f"links worth {links} full ones, and {whole - 1} links in every spanning tree of {whole} chips"
        sizes = Counter(self.part[self.mesh.live].tolist())
        if self.parts == 2:
            label, size = min(sizes.items(), key=lambda item: (item[1], item[0]))
            first = self.mesh.name(int(np.flatnonzero(self.part == label)[0]))
            what = f"chip {first} hangs" if size == 1 else f"{size} chips round {first} hang"
            worth = "" if self.mesh.even else "the worth of "
            return f"{what} on {worth}{links} {agree(self.links, 'link')}"
        single = sum(1 for size in sizes.values() if size == 1)
        big = ", ".join(str(size) for _, size in sizes.most_common(3) if size > 1)
        links = f"{links} links join" if self.mesh.even else f"links worth {links} full ones join"
        return f"{links} {self.parts} parts ({single} single chips, and parts of {big} chips)"


@lru_cache(4)
def bound(mesh: Fabric) -> Bound:
    """The exact bound: the least ratio over all partitions, and the partition that has it."""
    mesh.require_connected()
    n = len(mesh.live)
    part, links = weakest(mesh, mesh.units)
    labels = np.full(mesh.size, -1, np.int32)
    labels[mesh.live] = np.unique(part, return_inverse=True)[1]
    return Bound(mesh, Fraction(links if n > 1 else 0, mesh.whole), int(labels.max()) + 1, labels)


def weakest(mesh: Fabric, units: Ints) -> tuple[Ints, int]:
    """The partition of the live chips with the least ratio, and its crossing links, each counted as `units[link]`."""
    near, back = live_neighbours(mesh)
    inwards = mesh.inwards  # in any order the bound is the same; in this one the room that is looked for is near
    rank: Ints = np.full(len(near) + 1, -1)  # of -1, which is no chip, too
    rank[inwards] = np.arange(len(near))
    units = units.reshape(mesh.size, -1)[mesh.live][inwards]
    part, links = weakest_of(rank[near[inwards]], back[inwards], units)
    return part[rank[:-1]], links


def weakest_of(near: Ints, back: Ints, units: Ints) -> tuple[Ints, int]:
    """The same for any graph: neighbours and the way back over each link, as `live_neighbours` gives them."""
    part: Ints = np.arange(len(near))
    links = int(units.sum()) // 2
    while len(near) > 1:
        parts = len(np.unique(part))
        tighter = _worst_partition(near, back, units, links, parts - 1)
        crossing = (near >= 0) & (tighter[:, None] != tighter[near])
        new_links, new_parts = int(units[crossing].sum()) // 2, len(np.unique(tighter))
        if new_links * (parts - 1) >= links * (new_parts - 1):
            break
        part, links = tighter, new_links
    return part, links


def live_neighbours(mesh: Fabric) -> tuple[Ints, Ints]:
    """`mesh.neighbour` over the live chips only, numbered without gaps, and the way that leads back over each link."""
    back = mesh.link_source(mesh.reverse.reshape(mesh.size, -1)[mesh.live])[1]
    return mesh.place[mesh.neighbour[mesh.live]].astype(np.int64), back.astype(np.int64)


@kernel
def _worst_partition(near: Ints, back: Ints, units: Ints, p: int, q: int) -> Ints:
    """The partition that minimises q * links - p * parts, as a label for each chip.

    A part is contracted as soon as it is found: from then on only its rim counts, and it has one slack in common.
    """
    n, ways = near.shape
    held = np.zeros((n, ways), np.int64)  # units of the link in this way that its near end holds
    slack = np.zeros(n, np.int64)  # of the part that each chip leads
    leader = np.arange(n)
    rim = np.arange(n)  # for each leader, the first of its part's chips that have links out of it,
    rim_end = np.arange(n)  # and the last; the others follow each other:
    following = np.full(n, -1, np.int64)
    entry = np.zeros((n, 2), np.int64)  # the link by which the search came to a part, from inside: chip and way
    seen = np.full(n, -1, np.int64)
    queue = np.zeros(n, np.int64)
    stamp = 0

    def lead(chip: int) -> int:
        while leader[chip] != chip:
            leader[chip] = leader[leader[chip]]
            chip = leader[chip]
        return chip

    for chip in range(n):
        excess = 0
        for way in range(ways):
            there = near[chip, way]
            if 0 <= there < chip:
                held[chip, way] = q * units[chip, way]
                excess += q * units[chip, way]
        while excess > 0:
            stamp += 1
            seen[chip] = stamp
            queue[0] = chip
            head, tail, found = 0, 1, -1
            while head < tail and found < 0:
                part = queue[head]
                head += 1
                before, here = -1, rim[part]
                while here >= 0 and found < 0:
                    outside = False
                    for way in range(ways):
                        there = near[here, way]
                        if there < 0:
                            continue
                        beyond = lead(there)
                        if beyond == part:
                            continue
                        outside = True
                        if held[here, way] > 0 and seen[beyond] != stamp:
                            seen[beyond] = stamp
                            entry[beyond, 0] = there
                            entry[beyond, 1] = back[here, way]
                            queue[tail] = beyond
                            tail += 1
                            if slack[beyond] > 0:
                                found = beyond
                                break
                    then = following[here]
                    if outside:
                        before = here
                    elif before >= 0:
                        following[before] = then
                        if then < 0:
                            rim_end[part] = before
                    elif then >= 0:
                        rim[part] = then
                    here = then
            if found < 0:
                for i in range(1, tail):
                    part = queue[i]
                    leader[part] = chip
                    following[rim_end[chip]] = rim[part]
                    rim_end[chip] = rim_end[part]
                break
            pushed = min(excess, slack[found])
            part = found
            while part != chip:
                here, way = entry[part, 0], entry[part, 1]
                there = near[here, way]
                pushed = min(pushed, held[there, back[here, way]])
                part = lead(there)
            slack[found] -= pushed
            part = found
            while part != chip:
                here, way = entry[part, 0], entry[part, 1]
                there = near[here, way]
                held[here, way] += pushed
                held[there, back[here, way]] -= pushed
                part = lead(there)
            excess -= pushed
        slack[chip] = p
    for chip in range(n):
        leader[chip] = lead(chip)
    return leader
