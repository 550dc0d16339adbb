"""A network that lies on no grid: chips by number, and the links that were listed.

    mm.Mesh.from_links([(0, 1), (1, 2), (2, 0)])

A chip's ways are its links, lettered a, b, c … in order of the chips that they lead to.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np

from meshmend.errors import MeshError
from meshmend.mesh.cabling import MOST_CHIPS, Chip, IntArray, Link, frozen
from meshmend.mesh.fabric import Broken, Fabric
from meshmend.mesh.graph_notation import format_graph, parse_graph, read_word, speed_of

WAYS = string.ascii_lowercase + string.ascii_uppercase + string.digits
"""The letters of ways, and so the most links that a chip may have."""
SHORT = 120
"""Letters of a notation that is shown whole; longer ones are named by their size."""


@dataclass(frozen=True)
class Graph(Fabric):
    """Chips and the links between them as they were listed, with dead and slow parts. `Mesh.from_links` makes one."""

    joined: tuple[tuple[int, int], ...] = field(kw_only=True)
    """All links, dead ones included: pairs of chips, the lower one first, in order."""

    def __post_init__(self) -> None:
        _check(self.joined)
        pairs = ((int(min(pair)), int(max(pair))) for pair in self.joined)
        object.__setattr__(self, "joined", tuple(sorted(pairs)))
        self.settle("this graph")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the notation: `0-1-2-3-0 0-2 -chip@1 -link@2:3 ~0.5@0:2`."""
        links, words = parse_graph(text)
        return cls(joined=tuple(links)).fail(*words)

    def __str__(self) -> str:
        text = self.notation
        if len(text) <= SHORT:
            return text
        dead = f", of which {len(self.live)} and {len(self.links)} live" * (not self.intact)
        return f"graph of {self.size} chips and {len(self.joined)} links{dead}"

    def __repr__(self) -> str:
        return f"Graph.parse({self.notation!r})"

    @cached_property
    def notation(self) -> str:
        """One line that names this graph and no other; files hold it."""
        return format_graph(self.joined, self.dead_chips, self.dead_links, dict(self.slow))

    @cached_property
    def size(self) -> int:
        """Chips, dead ones included: the length of arrays over chips."""
        return len(self._around)

    @cached_property
    def _around(self) -> dict[int, list[int]]:
        """The chips that each chip is joined to, in order, whether they live or not."""
        around: dict[int, list[int]] = {}
        for a, b in self.joined:
            around.setdefault(a, []).append(b)
            around.setdefault(b, []).append(a)
        return {chip: sorted(there) for chip, there in around.items()}

    @cached_property
    def ways(self) -> str:
        """A letter for each link of the chip that has most."""
        return WAYS[: max(map(len, self._around.values()))]

    def inside(self, chip: Chip) -> Chip:
        """The chip, or a `MeshError` if there is none of this number."""
        if len(chip) != 1 or not 0 <= chip[0] < self.size:
            given = ",".join(map(str, chip))
            raise MeshError(f"there is no chip {given}: the chips of this graph are numbered 0 to {self.size - 1}")
        return chip

    def link(self, link: Link) -> Link:
        """The link with its lower end first, or a `MeshError` if there is no such link."""
        a, b = (self.inside(tuple(int(place) for place in chip)) for chip in link)
        if b[0] not in self._around[a[0]]:
            raise MeshError(
                f"link {a[0]}:{b[0]} does not exist: chip {a[0]} is joined to {_listed(self._around[a[0]])}"
            )
        return (a, b) if a < b else (b, a)

    def way(self, here: Chip, there: Chip) -> int:
        """The way that leads from a chip to its neighbour."""
        return self._around[here[0]].index(there[0])

    def index(self, chip: Chip) -> int:
        """The chip's position in arrays over chips, which is its number."""
        return int(self.inside(_chip(chip))[0])

    def chip(self, index: int) -> Chip:
        """A chip's number, as others name chips by row and column."""
        return (int(index),)

    @cached_property
    def neighbour(self) -> IntArray:
        """neighbour[chip, way]: the chip at the other end of that live link, or -1."""
        table = np.full((self.size, len(self.ways)), -1, np.int32)
        for chip, there in self._around.items():
            table[chip, : len(there)] = there
        return self.left_of(table)

    @cached_property
    def reverse(self) -> IntArray:
        """reverse[link]: the number of the same link the other way; -1 where there is no link."""
        number = {
            (chip, other): self.link_number(chip, way)
            for chip, there in self._around.items()
            for way, other in enumerate(there)
        }
        out = np.full(self.link_numbers, -1, np.int32)
        for (chip, other), link in number.items():
            if self.neighbour[chip, link % len(self.ways)] >= 0:
                out[link] = number[other, chip]
        return frozen(out)

    @cached_property
    def links(self) -> IntArray:
        """The live links, each once, as rows of (chip, way), seen from the lower end."""
        chip, way = np.nonzero(self.neighbour > np.arange(self.size)[:, None])
        return frozen(np.stack([chip, way], 1).astype(np.int32))

    def read(self, word: str) -> Broken:
        """What one word of the notation such as `-chip@3` kills or slows down."""
        chips, links, slow = read_word(word)
        return Broken(chips, links, {self.link(link): speed for link, speed in slow.items()})

    def fail(
        self,
        *holes: str | int | Chip | Link,
        chips: Iterable[int | Chip] = (),
        links: Iterable[Chip | Link] = (),
    ) -> Self:
        """The same graph with more of it dead: `graph.fail("-chip@3", 4, (5, 6))` kills two chips and a link."""
        given = [hole if isinstance(hole, str) else _hole(hole) for hole in holes]
        return super().fail(*given, chips=map(_chip, chips), links=map(_hole, links))


def graph_from(links: Iterable[tuple[Any, ...]] | Mapping[tuple[int, int], Any]) -> Graph:
    """`Mesh.from_links`."""
    rows = [(*pair, speed) for pair, speed in links.items()] if isinstance(links, Mapping) else list(map(tuple, links))
    for row in rows:
        if len(row) not in (2, 3):
            raise MeshError(f"a link given as {row!r}: give two chips, or two chips and a speed")
    pairs = tuple(row[:2] for row in rows)
    _check(pairs)
    slow = {((a,), (b,)): speed_of(row[2]) for (a, b), row in zip(pairs, rows, strict=True) if len(row) == 3}
    return Graph(joined=pairs, slow=frozenset(slow.items()))


def _check(pairs: Iterable[tuple[Any, ...]]) -> None:
    """Refuse what is no graph, in a sentence."""
    links: dict[int, set[int]] = {}
    for pair in pairs:
        if len(pair) != 2 or any(isinstance(end, bool) or not isinstance(end, (int, np.integer)) for end in pair):
            raise MeshError(f"a link given as {pair!r}: give the numbers of two chips")
        a, b = int(min(pair)), int(max(pair))
        if a < 0:
            raise MeshError(f"link {a}:{b}: chips are numbered from 0")
        if a == b:
            raise MeshError(f"link {a}:{b} joins a chip to itself: leave it out")
        if b in links.get(a, ()):
            raise MeshError(f"link {a}:{b} is given twice: give it once, and several cables as its speed")
        links.setdefault(a, set()).add(b)
        links.setdefault(b, set()).add(a)
    if not links:
        raise MeshError("there are no links: give at least one, as in Mesh.from_links([(0, 1)])")
    if len(links) <= max(links):
        gap = next(chip for chip in range(len(links) + 1) if chip not in links)
        raise MeshError(f"no link leads to chip {gap}: number the chips from 0 to {len(links) - 1} without gaps")
    if len(links) > MOST_CHIPS:
        raise MeshError(f"{len(links):,} chips are more than {MOST_CHIPS:,}, the most a mesh may have")
    most = max(links, key=lambda chip: len(links[chip]))
    if len(links[most]) > len(WAYS):
        raise MeshError(f"chip {most} has {len(links[most])} links, but a chip may have at most {len(WAYS)}")


def _chip(chip: int | Chip) -> Chip:
    """A chip that was given as its number."""
    return (int(chip),) if isinstance(chip, (int, np.integer)) else chip


def _hole(hole: int | Chip | Link) -> Any:
    """A chip given as a number, and a link given as two."""
    if isinstance(hole, (int, np.integer)):
        return _chip(hole)
    return tuple(map(_chip, hole)) if np.shape(hole)[:1] == (2,) else hole


def _listed(chips: Iterable[int]) -> str:
    """Chips in a message, the first ones."""
    listed = list(chips)
    return ", ".join(map(str, listed[:16])) + ", …" * (len(listed) > 16)
