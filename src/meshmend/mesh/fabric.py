"""What planners, proofs, schedules, simulators and executors know of a network: chips and links, dead and slow parts.

A `Mesh` is a fabric whose chips lie on a grid, a `Graph` one whose links were listed. Whoever needs rows and columns
asks for a `Mesh`; everything else works for both. Speeds are fractions of a whole link's, so that the bound is exact.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple, Self, cast

import numpy as np
import numpy.typing as npt

from meshmend.errors import Disconnected, MeshError
from meshmend.mesh import random_holes
from meshmend.mesh.ascii import text_map
from meshmend.mesh.cabling import Cabling, Chip, IntArray, Link, frozen

FINEST = 10**6
"""Parts of a whole link that speeds may be counted in, all together: larger numbers would not fit the bound's."""


class Broken(NamedTuple):
    """What the words of a notation kill and slow down."""

    chips: list[Chip]
    links: list[Link]
    slow: dict[Link, Fraction]


@dataclass(frozen=True)
class Fabric(Cabling):
    """What a `Mesh` and a `Graph` have in common: chips and the links between them, some of them dead or slow."""

    dead_chips: frozenset[Chip] = frozenset()
    dead_links: frozenset[Link] = frozenset()
    """Only links between live chips: a dead chip's links are dead anyway."""
    slow: frozenset[tuple[Link, Fraction]] = field(default=frozenset(), kw_only=True)
    """Live links whose speed differs from the usual one."""

    @property
    @abstractmethod
    def notation(self) -> str:
        """One line that names this network and no other; files hold it."""

    @cached_property
    def usual(self) -> tuple[Fraction, ...]:
        """The speed of the links in each way, where `slow` names no other."""
        return (Fraction(1),) * len(self.ways)

    @abstractmethod
    def read(self, word: str) -> Broken:
        """What one word of the notation such as `-chip@3` kills or slows down."""

    @cached_property
    def rimless(self) -> bool:
        """Whether no chip lies at a rim, as on a torus: here, whether all live chips have equally many links."""
        return len(np.unique((self.neighbour[self.live] >= 0).sum(1))) == 1

    @cached_property
    def inwards(self) -> IntArray:
        """The live chips' places in `live`, from the rim inwards: here, those with the fewest links first."""
        return np.argsort((self.neighbour[self.live] >= 0).sum(1), kind="stable").astype(np.int32)

    @cached_property
    def middle(self) -> int:
        """A live chip from which the others are not far."""
        return int(self.live[self.inwards[-1]])

    def settle(self, size: str) -> None:
        """Put what is dead and slow into its one form; a `MeshError` where there is no such thing."""
        chips = frozenset(self.inside(tuple(int(place) for place in chip)) for chip in self.dead_chips)
        if len(chips) == self.size:
            raise MeshError(f"all {len(chips)} chips of {size} are dead: at least one must be alive")
        links = frozenset(self.link(link) for link in self.dead_links)
        links = frozenset((a, b) for a, b in links if a not in chips and b not in chips)
        slow, usual = {self.link(link): Fraction(speed) for link, speed in self.slow}, self.usual
        for speed in (*usual, *slow.values()):
            if not 0 < speed <= 1:
                raise MeshError(f"a link at {float(speed):g} of its speed: give a fraction above 0 and at most 1")
        kept = frozenset(
            ((a, b), speed)
            for (a, b), speed in slow.items()
            if (a, b) not in links and not {a, b} & chips and speed != usual[self.way(a, b)]
        )
        if math.lcm(*(s.denominator for s in usual), *(speed.denominator for _, speed in kept)) > FINEST:
            raise MeshError("the links have too many different speeds to count exactly: round them to hundredths")
        for name, value in {"dead_chips": chips, "dead_links": links, "slow": kept}.items():
            object.__setattr__(self, name, value)

    def fail(self, *holes: str | Chip | Link, chips: Iterable[Chip] = (), links: Iterable[Link] = ()) -> Self:
        """The same mesh with more of it dead: `mesh.fail("-4x2@6,12", (3, 4), ((3, 4), (3, 5)))`."""
        more_chips, more_links = list(chips), list(links)
        sides = len(self.chip(0))
        slow: dict[Link, Fraction] = {}
        for hole in holes:
            if isinstance(hole, str):
                for word in hole.split():
                    found = self.read(word)
                    more_chips += found.chips
                    more_links += found.links
                    slow.update(found.slow)
            elif np.shape(hole) == (2, sides):
                more_links.append(cast(Link, hole))
            elif np.shape(hole) == (sides,):
                more_chips.append(cast(Chip, hole))
            else:
                some = self.name(self.size - 1)
                example = f"notation such as '-chip@{some}', a chip ({some}) or a link (chip, chip)"
                raise MeshError(f"cannot fail {hole!r}: give {example}")
        return replace(
            self,
            dead_chips=self.dead_chips | {tuple(map(int, chip)) for chip in more_chips},
            dead_links=self.dead_links | {(tuple(map(int, a)), tuple(map(int, b))) for a, b in more_links},
            slow=frozenset({**dict(self.slow), **slow}.items()),
        )

    def fail_random(self, seed: int, **counts: float) -> Self:
        """Kill `chips=`, `links=`, `boards=`, `hosts=` at random: an int is a count, a float under 1 a rate."""
        random_holes.check(self, seed, counts)
        left, random = self, np.random.default_rng(seed)
        for kind in random_holes.order(self):
            if kind in counts:
                picked = random_holes.pick(left, kind, counts[kind], random)
                left = left.fail(chips=picked.chips, links=picked.links)
        return left

    @property
    def intact(self) -> bool:
        """Whether nothing is dead."""
        return not self.dead_chips and not self.dead_links

    @property
    def even(self) -> bool:
        """Whether all links are equally fast."""
        return not self.slow and all(speed == 1 for speed in self.usual)

    @cached_property
    def alive(self) -> npt.NDArray[np.bool_]:
        """Whether each chip lives."""
        alive = np.ones(self.size, bool)
        alive[[self.index(chip) for chip in self.dead_chips]] = False
        return frozen(alive)

    def left_of(self, table: IntArray) -> IntArray:
        """Neighbours without those that are dead, or behind a dead link; the table is changed."""
        table[~self.alive] = -1
        table[(table >= 0) & ~self.alive[table]] = -1
        for a, b in self.dead_links:
            for here, there in ((a, b), (b, a)):
                table[self.index(here), self.way(here, there)] = -1
        return frozen(table)

    @cached_property
    def place(self) -> IntArray:
        """The position of each chip in `live`; -1 for dead chips, and for the index -1, which is no chip."""
        place = np.full(self.size + 1, -1, np.int32)
        place[self.live] = np.arange(len(self.live))
        return frozen(place)

    @cached_property
    def whole(self) -> int:
        """What a whole link counts in `units`: speeds are whole numbers of 1 / whole."""
        return math.lcm(*(s.denominator for s in self.usual), *(speed.denominator for _, speed in self.slow))

    @cached_property
    def units(self) -> npt.NDArray[np.int64]:
        """The speed of each directed link (`link_number`), in parts of a whole link's speed / `whole`; 0 for none."""
        usual = [int(speed * self.whole) for speed in self.usual]
        out = np.where(self.neighbour >= 0, np.array(usual), 0)
        for (a, b), speed in self.slow:
            for here, there in ((a, b), (b, a)):
                out[self.index(here), self.way(here, there)] = int(speed * self.whole)
        return frozen(out.ravel().astype(np.int64))

    @cached_property
    def speed(self) -> npt.NDArray[np.float64]:
        """The speed of each directed link, 1 for a whole one and for those that do not exist."""
        return frozen(np.where(self.units > 0, self.units / self.whole, 1.0))

    @property
    def connected(self) -> bool:
        """Whether every live chip can reach every other."""
        return len(self.components) == 1

    def require_connected(self) -> None:
        """Raise `Disconnected`, with the sizes and the map, unless the live chips form one piece."""
        if self.connected:
            return
        sizes = tuple(len(p) for p in self.components)
        listed = ", ".join(map(str, sizes[:8])) + (", …" if len(sizes) > 8 else "")
        raise Disconnected(
            f"the live chips of {self} form {len(sizes)} disconnected components of {listed} chips: "
            "continue with the largest by mesh.largest() (--largest on the command line)\n"
            + text_map(self, components=True),
            sizes,
        )

    def largest(self) -> Self:
        """The same with every component but the largest dead."""
        return self.fail(chips=[self.chip(i) for part in self.components[1:] for i in part])
