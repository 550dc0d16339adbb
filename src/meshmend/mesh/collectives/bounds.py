"""What no plan of a collective can exceed, each with the cut that proves it. N is the number of live chips.

Take a set S of chips and the links that join it to the rest, which carry B each way:

* **broadcast**: the payload must enter every S without the root: algbw <= links(S). The least cut is tight (Edmonds
  1973: as many arc-disjoint arborescences as the least cut has links).
* **all_gather**, **reduce_scatter**: S must get (or give) the pieces of all others, (N - |S|) / N of the payload, so
  algbw <= links(S) * N / (N - |S|).
* **all_to_all**: S must send |S| * (N - |S|) / N to the others: algbw <= links(S) * N / (|S| * (N - |S|)). And every
  byte occupies as many links as it has hops: algbw <= N * (directed links) / (the sum of all distances).
* **groups**: cut the chips into parts. A group with members in p of them needs, in each direction, at least p - 1
  crossings between parts, whatever relays it uses: algbw <= links between parts / (the sum of p - 1 over all groups).
  With the tiles as parts, and unions of them, the least such ratio is the strength of the graph of tiles, divided by
  the number of groups. Packing Steiner trees has no exact bound that can be computed: plans print how much of this one
  they reach.

A slow link counts as the part of a link that it is. Every bound here is proved by its cut; the least cut of all is
found for broadcast, and for the others the least of the cuts that were looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from meshmend.base.kernels import kernel
from meshmend.base.units import agree
from meshmend.mesh import Fabric, Mesh
from meshmend.mesh.collectives.groups import Labels, Tile
from meshmend.mesh.notation import speed_text
from meshmend.mesh.planners.bound import live_neighbours, weakest_of

Ints = npt.NDArray[np.int64]
Chosen = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class CutBound:
    """What no plan can exceed, in units of B."""

    mesh: Fabric = field(repr=False)
    fraction: Fraction | None
    """The bound; None where there is nothing to send."""
    part: npt.NDArray[np.int32] = field(repr=False)
    """The certificate: each chip's part, -1 at dead chips. A set and the rest are parts 1 and 0."""
    reason: str
    """The cut in words."""

    @property
    def value(self) -> float:
        """The bound as a number; infinite where there is nothing to send."""
        return float("inf") if self.fraction is None else float(self.fraction)


def nothing(mesh: Fabric) -> CutBound:
    """The bound of a single chip."""
    return CutBound(mesh, None, np.where(mesh.alive, 0, -1).astype(np.int32), "one chip has nothing to send")


def crossing(mesh: Fabric, part: npt.NDArray[np.int32]) -> Fraction:
    """Links between parts, slow ones as the part of a link that they are."""
    chip, way = mesh.links.T
    cut = part[chip] != part[mesh.neighbour[chip, way]]
    return Fraction(int(mesh.units[mesh.link_number(chip[cut], way[cut])].sum()), mesh.whole)


def broadcast_bound(mesh: Fabric, root: int) -> CutBound:
    """The least cut between the root and any chip."""
    if len(mesh.live) == 1:
        return nothing(mesh)
    value, size = _cuts(mesh, root)
    return _best(mesh, _sets(mesh, root, np.lexsort((size, value))[:1]), lambda links, _: links)


def gather_bound(mesh: Fabric) -> CutBound:
    """The least of the cuts around single chips and the least cuts between each chip and the middle."""
    n = len(mesh.live)
    if n == 1:
        return nothing(mesh)
    root = mesh.middle
    value, size = _cuts(mesh, root)
    tight = np.lexsort((size, value / np.maximum(1, n - size)))[:1]
    weak = mesh.live[[int(np.argmin(mesh.units.reshape(mesh.size, -1)[mesh.live].sum(1)))]]
    sets = [*_sets(mesh, root, tight), np.isin(np.arange(mesh.size), weak)]
    return _best(mesh, iter(sets), lambda links, inside: links * n / (n - inside))


def exchange_bound(mesh: Fabric) -> CutBound:
    """The least of the cuts straight through the mesh, the cuts of `gather_bound`, and the sum of all distances."""
    n = len(mesh.live)
    if n == 1:
        return nothing(mesh)

    def ratio(links: Fraction, inside: int) -> Fraction:
        return links * n / (inside * (n - inside))

    sets = [*straight_sets(mesh), gather_bound(mesh).part == 1]
    cut = _best(mesh, iter(sets), ratio)
    hops = distances(mesh)
    links = Fraction(int(mesh.units.sum()), mesh.whole)
    if cut.fraction is None or links * n / hops < cut.fraction:
        reason = f"{speed_text(links)} directed links, and {hops:,} hops between all pairs of {n} chips"
        return CutBound(mesh, links * n / hops, np.where(mesh.alive, 0, -1).astype(np.int32), reason)
    return cut


def groups_bound(mesh: Mesh, tile: Tile) -> CutBound:
    """The strength of the graph of tiles over the number of groups, or the weakest member's links if those are less."""
    part = tile_parts(mesh, tile)
    parts = int(part.max()) + 1
    near, back, units = _quotient(mesh, part, parts)
    merged, links = weakest_of(near, back, units)
    label = np.unique(merged, return_inverse=True)[1]
    part = np.where(part >= 0, label[part], -1).astype(np.int32)
    parts = int(part.max()) + 1
    tight = Fraction(links, mesh.whole * (parts - 1) * tile.size)
    member = tile.groups(mesh) >= 0
    own = np.where(member, mesh.units.reshape(mesh.size, -1).sum(1), np.iinfo(np.int64).max)
    weak = int(np.argmin(own))
    if Fraction(int(own[weak]), mesh.whole) < tight:
        alone = np.where(mesh.alive, np.arange(mesh.size) == weak, -1).astype(np.int32)
        fraction = Fraction(int(own[weak]), mesh.whole)
        return CutBound(
            mesh, fraction, alone, f"chip {mesh.name(weak)} is joined to the others by {speed_text(fraction)} links"
        )
    worth = speed_text(Fraction(links, mesh.whole))
    what = f"{worth} links" if mesh.even else f"links worth {worth} full ones"
    reason = f"{what} join {parts} parts of whole tiles, which {tile.size} groups share"
    return CutBound(mesh, tight, part, reason)


def tile_parts(mesh: Mesh, tile: Tile) -> Labels:
    """Each live chip's part: its tile, and for chips of tiles that are out the neighbouring part it has most links to.

    Any such choice gives a valid bound; this one leaves few links between parts.
    """
    number = tile.tiles(mesh)
    part = np.where(tile.whole(mesh), number, -1)
    while (loose := mesh.alive & (part < 0)).any():
        near = mesh.neighbour[loose]
        there = np.where(near >= 0, part[near], -1)
        votes = np.array([[np.count_nonzero(row == p) if p >= 0 else 0 for p in row] for row in there])
        best = there[np.arange(len(there)), votes.argmax(1)]
        part[np.flatnonzero(loose)] = best
    out = np.full(mesh.size, -1, np.int32)
    out[mesh.live] = np.unique(part[mesh.live], return_inverse=True)[1]
    return out


def _quotient(mesh: Mesh, part: Labels, parts: int) -> tuple[Ints, Ints, Ints]:
    """The graph of parts: neighbours, the way back, and the units of all links between two parts."""
    chip, way = mesh.links.T
    a, b = part[chip], part[mesh.neighbour[chip, way]]
    low, high = np.minimum(a, b), np.maximum(a, b)
    cut = low != high
    pairs, which = np.unique(np.stack([low[cut], high[cut]], 1), axis=0, return_inverse=True)
    weight = np.bincount(which.ravel(), mesh.units[mesh.link_number(chip[cut], way[cut])]).astype(np.int64)
    degree = np.zeros(parts, np.int64)
    places = np.zeros(pairs.shape, np.int64)
    for i, pair in enumerate(pairs):
        for end in (0, 1):
            places[i, end] = degree[pair[end]]
            degree[pair[end]] += 1
    near, back, units = (np.full((parts, int(degree.max())), fill, np.int64) for fill in (-1, 0, 0))
    for end in (0, 1):
        here = pairs[:, end], places[:, end]
        near[here], back[here], units[here] = pairs[:, 1 - end], places[:, 1 - end], weight
    return near, back, units


def straight_sets(mesh: Fabric) -> Iterator[Chosen]:
    """The chips between two planes across an axis, the first and the last row included; a graph has no planes."""
    if not isinstance(mesh, Mesh):
        return
    for axis, place in enumerate(mesh.positions()):
        side = mesh.dims[axis]
        for begin in range(side if mesh.wrap[axis] else 1):
            for end in range(begin + 1, side):
                yield mesh.alive & (place >= begin) & (place < end)


def distances(mesh: Fabric) -> int:
    """The sum of the hops between all ordered pairs of live chips."""
    near, _ = live_neighbours(mesh)
    return int(_all_distances(near))


def _best(mesh: Fabric, sets: Iterator[Chosen], ratio: Callable[[Fraction, int], Fraction]) -> CutBound:
    """The set with the least ratio, as a bound."""
    best: tuple[Fraction, Fraction, Chosen] | None = None
    for inside in sets:
        count = np.count_nonzero(inside)
        if not 0 < count < len(mesh.live):
            continue
        links = crossing(mesh, inside.astype(np.int32))
        found = ratio(links, int(count))
        if best is None or found < best[0]:
            best = found, links, inside
    assert best is not None, "a mesh of two chips or more has a cut"
    fraction, links, inside = best
    count = np.count_nonzero(inside)
    first = mesh.name(int(np.flatnonzero(inside)[0]))
    what = f"chip {first} is" if count == 1 else f"{count} chips, {first} among them, are"
    reason = f"{what} joined to the others by {speed_text(links)} {agree(links, 'link')}"
    return CutBound(mesh, fraction, np.where(mesh.alive, inside, -1).astype(np.int32), reason)


def _cuts(mesh: Fabric, root: int) -> tuple[Ints, Ints]:
    """For each live chip the least cut between it and the root, and the chips on its side; the root's is infinite."""
    near, back = live_neighbours(mesh)
    units = mesh.units.reshape(mesh.size, -1)[mesh.live]
    value, size, _ = least_cuts(near, back, units, int(mesh.place[root]), np.arange(len(near)))
    return value, size


def _sets(mesh: Fabric, root: int, chips: Ints) -> Iterator[Chosen]:
    """The chips' sides of their least cuts."""
    near, back = live_neighbours(mesh)
    units = mesh.units.reshape(mesh.size, -1)[mesh.live]
    for chip in chips:
        _, _, side = least_cuts(near, back, units, int(mesh.place[root]), np.array([chip]))
        inside = np.zeros(mesh.size, bool)
        inside[mesh.live] = side
        yield inside


@kernel
def least_cuts(near: Ints, back: Ints, units: Ints, root: int, chips: Ints) -> tuple[Ints, Ints, Chosen]:
    """For each of the chips the least cut between it and the root: its value, the size of its side, the last side."""
    n, ways = near.shape
    value, size = np.full(len(chips), 1 << 60, np.int64), np.full(len(chips), n, np.int64)
    flow = np.zeros((n, ways), np.int64)
    came = np.zeros(n, np.int64)
    queue = np.zeros(n, np.int64)
    seen = np.zeros(n, np.bool_)
    for k in range(len(chips)):
        chip = chips[k]
        if chip == root:
            continue
        flow[:] = 0
        total = 0
        while True:
            seen[:] = False
            seen[chip] = True
            queue[0] = chip
            head, tail = 0, 1
            while head < tail and not seen[root]:
                here = queue[head]
                head += 1
                for way in range(ways):
                    there = near[here, way]
                    if there >= 0 and not seen[there] and units[here, way] > flow[here, way]:
                        seen[there] = True
                        came[there] = back[here, way]
                        queue[tail] = there
                        tail += 1
            if not seen[root]:
                value[k], size[k] = total, tail
                break
            pushed = 1 << 60
            here = root
            while here != chip:
                there = near[here, came[here]]
                way = back[here, came[here]]
                pushed = min(pushed, units[there, way] - flow[there, way])
                here = there
            here = root
            while here != chip:
                there = near[here, came[here]]
                way = back[here, came[here]]
                flow[there, way] += pushed
                flow[here, came[here]] -= pushed
                here = there
            total += pushed
    return value, size, seen


@kernel
def _all_distances(near: Ints) -> int:
    """The sum of hops over all ordered pairs, breadth first from every chip."""
    n, ways = near.shape
    total = 0
    hops = np.zeros(n, np.int64)
    queue = np.zeros(n, np.int64)
    for chip in range(n):
        hops[:] = -1
        hops[chip] = 0
        queue[0] = chip
        head, tail = 0, 1
        while head < tail:
            here = queue[head]
            head += 1
            total += hops[here]
            for way in range(ways):
                there = near[here, way]
                if there >= 0 and hops[there] < 0:
                    hops[there] = hops[here] + 1
                    queue[tail] = there
                    tail += 1
    return total
