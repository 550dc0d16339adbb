"""The exact upper bound on any plan, with the partition that proves it.

Cut the live chips into parts. Each unit of payload needs, in each direction, at least `parts - 1` crossings between
parts (every part but one must send its sum out, and get the result back), and all links between parts carry B each
way, so

    algbw <= B * (links between parts) / (parts - 1)          for every partition.

The least such ratio is the graph's fractional strength, and a packing of spanning trees reaches it (Tutte 1961;
Nash-Williams 1961), so the bound is tight. Single chips as parts are often the worst cut, but not always: a dangling
chip or a thin bridge is worse.

To find it: Newton's iteration on the ratio p/q (as Cunningham 1985 does). For each p/q the partition that minimises
`q * links - p * parts` comes from a Dilworth truncation, computed here like a pebble game: chips are added one by one,
every link's q units are assigned to its two ends, and each chip gets the least capacity z with
`z(S) >= q * links inside S + p` for all sets S of chips so far. A chip that cannot push its units away has found a
tight set, which becomes one part. All numbers are integers, so the result is exact.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from meshmend.base.kernels import kernel
from meshmend.mesh import Mesh

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Bound:
    """`links / (parts - 1)`: what no plan on this mesh can pass, in units of B."""

    mesh: Mesh = field(repr=False)
    links: int
    """Live links between the parts."""
    parts: int
    part: npt.NDArray[np.int32] = field(repr=False)
    """The certificate: each chip's part, -1 at dead chips."""

    @property
    def fraction(self) -> Fraction:
        """The bound as an exact fraction (of a mesh of two chips or more)."""
        return Fraction(self.links, self.parts - 1)

    @property
    def value(self) -> float:
        """The bound as a number; infinite for a single chip, which needs no sum."""
        return self.links / (self.parts - 1) if self.parts > 1 else float("inf")

    @property
    def reason(self) -> str:
        """The cut that proves the bound, in words."""
        if self.parts == 1:
            return "one chip has nothing to sum"
        whole = len(self.mesh.live)
        dangling = np.flatnonzero((self.mesh.neighbour >= 0).sum(1) == 1)
        if self.value == 1 and len(dangling):
            row, col = self.mesh.chip(dangling[0])
            more = f" (and {len(dangling) - 1} more like it)" if len(dangling) > 1 else ""
            return f"chip {row},{col}{more} has one live link, which caps every plan at 1.0 B"
        if self.parts == whole:
            return f"{self.links} live links, and {whole - 1} of them in every spanning tree of {whole} chips"
        sizes = Counter(self.part[self.mesh.live].tolist())
        if self.parts == 2:
            label, size = min(sizes.items(), key=lambda item: (item[1], item[0]))
            first = self.mesh.chip(int(np.flatnonzero(self.part == label)[0]))
            what = (
                f"chip {first[0]},{first[1]} hangs" if size == 1 else f"{size} chips round {first[0]},{first[1]} hang"
            )
            return f"{what} on {self.links} link{'s' * (self.links > 1)}"
        single = sum(1 for size in sizes.values() if size == 1)
        big = ", ".join(str(size) for _, size in sizes.most_common(3) if size > 1)
        return f"{self.links} links join {self.parts} parts ({single} single chips, and parts of {big} chips)"


def bound(mesh: Mesh) -> Bound:
    """The exact bound: the least ratio over all partitions, and the partition that has it."""
    mesh.require_connected()
    n = len(mesh.live)
    near = live_neighbours(mesh)
    part = np.arange(n)
    links = len(mesh.links)
    while n > 1:
        parts = len(np.unique(part))
        tighter = _worst_partition(near, links, parts - 1)
        crossing = (near >= 0) & (tighter[:, None] != tighter[near])
        new_links, new_parts = int(crossing.sum()) // 2, len(np.unique(tighter))
        if new_links * (parts - 1) >= links * (new_parts - 1):
            break
        part, links = tighter, new_links
    labels = np.full(mesh.size, -1, np.int32)
    labels[mesh.live] = np.unique(part, return_inverse=True)[1]
    return Bound(mesh, links if n > 1 else 0, int(labels.max()) + 1, labels)


def live_neighbours(mesh: Mesh) -> Ints:
    """`mesh.neighbour` over the live chips only, numbered without gaps."""
    return mesh.place[mesh.neighbour[mesh.live]].astype(np.int64)


@kernel
def _worst_partition(near: Ints, p: int, q: int) -> Ints:
    """The partition that minimises q * links - p * parts, as a label for each chip."""
    n = near.shape[0]
    held = np.zeros((n, 4), np.int64)  # units of the link in this way that its near end holds
    slack = np.zeros(n, np.int64)
    leader = np.arange(n)
    came = np.zeros(n, np.int64)
    seen = np.full(n, -1, np.int64)
    queue = np.zeros(n, np.int64)
    stamp = 0
    for chip in range(n):
        excess = 0
        for way in range(4):
            there = near[chip, way]
            if 0 <= there < chip:
                held[chip, way] = q
                excess += q
        while excess > 0:
            stamp += 1
            seen[chip] = stamp
            queue[0] = chip
            head, tail, found = 0, 1, -1
            while head < tail and found < 0:
                here = queue[head]
                head += 1
                for way in range(4):
                    if held[here, way] > 0:
                        there = near[here, way]
                        if seen[there] != stamp:
                            seen[there] = stamp
                            came[there] = way
                            queue[tail] = there
                            tail += 1
                            if slack[there] > 0:
                                found = there
                                break
            if found < 0:
                for i in range(tail):
                    a = queue[i]
                    while leader[a] != a:
                        a = leader[a]
                    b = chip
                    while leader[b] != b:
                        b = leader[b]
                    leader[max(a, b)] = min(a, b)
                break
            units = min(excess, slack[found])
            here = found
            while here != chip:
                back = came[here] ^ 2
                here = near[here, back]
                units = min(units, held[here, back ^ 2])
            slack[found] -= units
            here = found
            while here != chip:
                back = came[here] ^ 2
                held[here, back] += units
                here = near[here, back]
                held[here, back ^ 2] -= units
            excess -= units
        slack[chip] = p
    for chip in range(n):
        while leader[leader[chip]] != leader[chip]:
            leader[chip] = leader[leader[chip]]
    return leader
