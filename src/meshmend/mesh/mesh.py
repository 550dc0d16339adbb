"""What exists, what is dead and what is slow: an immutable mesh or torus of chips with a hole in it.

The grid (chips, ways, links, wraps) is that of `grid.py`; a mesh adds what is dead of it, and which of its links carry
less than the others. Speeds are fractions of a whole link's, so that the bound stays exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import cast

import numpy as np
import numpy.typing as npt

from meshmend.errors import Disconnected, MeshError
from meshmend.mesh import random_holes
from meshmend.mesh.ascii import text_map
from meshmend.mesh.grid import STEP, Chip, Grid, IntArray, Link, around_all, frozen
from meshmend.mesh.notation import format_mesh, parse, read_hole, read_slow

FINEST = 10**6
"""Parts of a whole link that speeds may be counted in, all together: larger numbers would not fit the bound's."""


@dataclass(frozen=True)
class Mesh(Grid):
    """A `rows` x `cols` (x `layers`) mesh with dead and slow parts; `wrap` joins opposite rims into rings."""

    dead_chips: frozenset[Chip] = frozenset()
    dead_links: frozenset[Link] = frozenset()
    """Only links between live chips: a dead chip's links are dead anyway."""
    axis_speed: tuple[Fraction, ...] = field(default=(), kw_only=True)
    """How fast the links along each axis are, as a part of a whole link's speed."""
    slow: frozenset[tuple[Link, Fraction]] = field(default=frozenset(), kw_only=True)
    """Live links whose speed differs from their axis's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        chips = frozenset(tuple(int(place) for place in chip) for chip in self.dead_chips)
        for chip in chips:
            self.inside(chip)
        if len(chips) == self.size:
            raise MeshError(f"all {len(chips)} chips of {self.size_text} are dead: at least one must be alive")
        links = frozenset(self.link(link) for link in self.dead_links)
        links = frozenset((a, b) for a, b in links if a not in chips and b not in chips)
        speeds = (*(Fraction(s) for s in self.axis_speed), *[Fraction(1)] * len(self.dims))[: len(self.dims)]
        slow = {self.link(link): Fraction(speed) for link, speed in self.slow}
        for speed in (*speeds, *slow.values()):
            if not 0 < speed <= 1:
                raise MeshError(f"a link at {float(speed):g} of its speed: give a part above 0 and at most 1")
        kept = frozenset(
            ((a, b), speed)
            for (a, b), speed in slow.items()
            if (a, b) not in links and not {a, b} & chips and speed != speeds[STEP[self.way(a, b)][0]]
        )
        if math.lcm(*(s.denominator for s in speeds), *(speed.denominator for _, speed in kept)) > FINEST:
            raise MeshError("the links have too many different speeds to count exactly: round them to hundredths")
        for name, value in {"dead_chips": chips, "dead_links": links, "axis_speed": speeds, "slow": kept}.items():
            object.__setattr__(self, name, value)

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """Read the notation, e.g. `16x32 -4x2@6,12` or `8x8x8 wrap=xyz -host@0,0,3 ~0.5@3,4,0:3,5,0`."""
        grid, dead, slow = parse(text)
        try:
            axes = tuple(slow.axes.get(axis, Fraction(1)) for axis in range(len(grid.dims)))
            return cls(
                grid.rows, grid.cols, grid.wrap, frozenset(dead.chips), frozenset(dead.links),
                layers=grid.layers, axis_speed=axes, slow=frozenset(slow.links.items()),
            )  # fmt: skip
        except MeshError as error:
            raise MeshError(f"cannot build {text!r}: {error}") from None

    def __str__(self) -> str:
        return format_mesh(self, self.dead_chips, self.dead_links, self.axis_speed, dict(self.slow))

    def __repr__(self) -> str:
        return f"Mesh.parse({str(self)!r})"

    def fail(self, *holes: str | Chip | Link, chips: Iterable[Chip] = (), links: Iterable[Link] = ()) -> Mesh:
        """The same mesh with more of it dead: `mesh.fail("-4x2@6,12", (3, 4), ((3, 4), (3, 5)))`."""
        more_chips, more_links = list(chips), list(links)
        sides = len(self.dims)
        slow: dict[Link, Fraction] = {}
        for hole in holes:
            if isinstance(hole, str):
                for token in hole.split():
                    if token.startswith("~"):
                        slow.update(self._slowed(token))
                        continue
                    dead = read_hole(self, token, token)
                    more_chips += dead.chips
                    more_links += dead.links
            elif np.shape(hole) == (2, sides):
                more_links.append(cast(Link, hole))
            elif np.shape(hole) == (sides,):
                more_chips.append(cast(Chip, hole))
            else:
                chip = ("(row, col)", "(row, col, layer)")[sides - 2]
                raise MeshError(
                    f"cannot fail {hole!r}: give notation such as '-4x2@6,12', a chip {chip} or a link (chip, chip)"
                )
        return replace(
            self,
            dead_chips=self.dead_chips | {tuple(map(int, chip)) for chip in more_chips},
            dead_links=self.dead_links | {(tuple(map(int, a)), tuple(map(int, b))) for a, b in more_links},
            slow=frozenset({**dict(self.slow), **slow}.items()),
        )

    def _slowed(self, token: str) -> Mapping[Link, Fraction]:
        found = read_slow(self, token, token)
        if found.axes:
            raise MeshError(f"cannot fail {token!r}: an axis is slow from the beginning, so give it to Mesh.parse")
        return found.links

    def fail_random(self, seed: int, **counts: float) -> Mesh:
        """Kill `chips=`, `links=`, `boards=`, `hosts=` at random: an int is a count, a float under 1 a rate."""
        random_holes.check(self, seed, counts)
        mesh, random = self, np.random.default_rng(seed)
        for kind in random_holes.order(self):
            if kind in counts:
                picked = random_holes.pick(mesh, kind, counts[kind], random)
                mesh = mesh.fail(chips=picked.chips, links=picked.links)
        return mesh

    @property
    def intact(self) -> bool:
        """Whether nothing is dead."""
        return not self.dead_chips and not self.dead_links

    @property
    def even(self) -> bool:
        """Whether all links are equally fast."""
        return not self.slow and all(speed == 1 for speed in self.axis_speed)

    @cached_property
    def alive(self) -> npt.NDArray[np.bool_]:
        """Whether each chip lives."""
        alive = np.ones(self.size, bool)
        for chip in self.dead_chips:
            alive[self.index(chip)] = False
        return frozen(alive)

    @cached_property
    def place(self) -> IntArray:
        """The position of each chip in `live`; -1 for dead chips, and for the index -1, which is no chip."""
        place = np.full(self.size + 1, -1, np.int32)
        place[self.live] = np.arange(len(self.live))
        return frozen(place)

    @cached_property
    def neighbour(self) -> IntArray:
        """neighbour[chip, way]: the chip at the other end of that live link, or -1."""
        out = around_all(self)
        out[~self.alive] = -1
        out[(out >= 0) & ~self.alive[out]] = -1
        for a, b in self.dead_links:
            for here, there in ((a, b), (b, a)):
                out[self.index(here), self.way(here, there)] = -1
        return frozen(out)

    @cached_property
    def whole(self) -> int:
        """What a whole link counts in `units`: speeds are whole numbers of 1 / whole."""
        return math.lcm(*(s.denominator for s in self.axis_speed), *(speed.denominator for _, speed in self.slow))

    @cached_property
    def units(self) -> npt.NDArray[np.int64]:
        """The speed of each directed link (`link_number`), in parts of a whole link's speed / `whole`; 0 for none."""
        along = [int(self.axis_speed[STEP[way][0]] * self.whole) for way in range(len(self.ways))]
        out = np.where(self.neighbour >= 0, np.array(along), 0)
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
            f"the live chips of {self} fall apart into {len(sizes)} components of {listed} chips: "
            "continue with the largest by mesh.largest() (--largest on the command line)\n"
            + text_map(self, components=True),
            sizes,
        )

    def largest(self) -> Mesh:
        """The mesh with every component but the largest dead."""
        return self.fail(chips=[self.chip(i) for part in self.components[1:] for i in part])
