"""What exists and what is dead: an immutable 2-D mesh or torus of chips with a hole in it.

The grid (chips, ways, links, wraps) is that of `grid.py`; a mesh adds what is dead of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import numpy.typing as npt

from meshmend.errors import Disconnected, MeshError
from meshmend.mesh import random_holes
from meshmend.mesh.ascii import text_map
from meshmend.mesh.grid import Chip, Grid, IntArray, Link, frozen
from meshmend.mesh.notation import format_mesh, parse, read_hole


@dataclass(frozen=True)
class Mesh(Grid):
    """A `rows` x `cols` mesh with dead chips and links; `wrap` joins opposite rims into rings."""

    dead_chips: frozenset[Chip] = frozenset()
    dead_links: frozenset[Link] = frozenset()
    """Only links between live chips: a dead chip's links are dead anyway."""

    def __post_init__(self) -> None:
        super().__post_init__()
        chips = frozenset((int(r), int(c)) for r, c in self.dead_chips)
        for chip in chips:
            self.inside(chip)
        if len(chips) == self.size:
            raise MeshError(f"all {len(chips)} chips of {self.rows}x{self.cols} are dead: at least one must be alive")
        links = frozenset(self.link(link) for link in self.dead_links)
        links = frozenset((a, b) for a, b in links if a not in chips and b not in chips)
        object.__setattr__(self, "dead_chips", chips)
        object.__setattr__(self, "dead_links", links)

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """Read the notation, e.g. `16x32 -4x2@6,12` or `tpu-v3-1024 -host@0,0 -link@3,4:3,5`."""
        grid, hole = parse(text)
        try:
            return cls(grid.rows, grid.cols, grid.wrap, frozenset(hole.chips), frozenset(hole.links))
        except MeshError as error:
            raise MeshError(f"cannot build {text!r}: {error}") from None

    def __str__(self) -> str:
        return format_mesh(self, self.dead_chips, self.dead_links)

    def __repr__(self) -> str:
        return f"Mesh.parse({str(self)!r})"

    def fail(self, *holes: str | Chip | Link, chips: Iterable[Chip] = (), links: Iterable[Link] = ()) -> Mesh:
        """The same mesh with more of it dead: `mesh.fail("-4x2@6,12", (3, 4), ((3, 4), (3, 5)))`."""
        more_chips, more_links = list(chips), list(links)
        for hole in holes:
            if isinstance(hole, str):
                for token in hole.split():
                    dead = read_hole(self, token, token)
                    more_chips += dead.chips
                    more_links += dead.links
            elif np.shape(hole) == (2, 2):
                more_links.append(cast(Link, hole))
            elif np.shape(hole) == (2,):
                more_chips.append(cast(Chip, hole))
            else:
                raise MeshError(
                    f"cannot fail {hole!r}: give notation such as '-4x2@6,12', a chip (row, col) or a link (chip, chip)"
                )
        return Mesh(
            self.rows,
            self.cols,
            self.wrap,
            self.dead_chips | {(int(r), int(c)) for r, c in more_chips},
            self.dead_links | {((int(a), int(b)), (int(c), int(d))) for (a, b), (c, d) in more_links},
        )

    def fail_random(self, seed: int, **counts: float) -> Mesh:
        """Kill `chips=`, `links=`, `boards=`, `hosts=` at random: an int is a count, a float under 1 a rate."""
        random_holes.check(seed, counts)
        mesh, random = self, np.random.default_rng(seed)
        for kind in random_holes.ORDER:
            if kind in counts:
                picked = random_holes.pick(mesh, kind, counts[kind], random)
                mesh = mesh.fail(chips=picked.chips, links=picked.links)
        return mesh

    @property
    def intact(self) -> bool:
        """Whether nothing is dead."""
        return not self.dead_chips and not self.dead_links

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
        out = self._around_all()
        out[~self.alive] = -1
        out[(out >= 0) & ~self.alive[out]] = -1
        for a, b in self.dead_links:
            for here, there in ((a, b), (b, a)):
                out[self.index(here), self.way(here, there)] = -1
        return frozen(out)

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
