"""What exists and what is dead: an immutable 2-D mesh or torus of chips with a hole in it.

A chip is named by (row, col) in the interface and by `row * cols + col` in arrays. A directed link is
named by the chip it leaves and the way it goes, `4 * chip + way`, with the ways

            N = 0
    W = 3     +     E = 1          the way back is `way ^ 2`
            S = 2

so that a tree, a load or a schedule is a plain array over chips or over `4 * chips` links. `wrap=(x, y)` joins
the ends of the columns (x, the rows' axis) and of the rows (y, the columns' axis).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from meshmend.errors import Chip, Disconnected, MeshError

Link = tuple[Chip, Chip]
IntArray = npt.NDArray[np.int32]

WAYS = "NESW"
STEP: tuple[Chip, ...] = ((-1, 0), (0, 1), (1, 0), (0, -1))
BOARD: Chip = (2, 2)
"""Chips that share a tray on TPU-v3."""
HOST: Chip = (4, 2)
"""Chips that share a host on TPU-v3."""
MOST_CHIPS = 2**20
"""Beyond any machine, and before a mistyped size fills the memory."""


@dataclass(frozen=True)
class Mesh:
    """A `rows` x `cols` mesh with dead chips and links; `wrap` joins opposite rims into rings."""

    rows: int
    cols: int
    wrap: tuple[bool, bool] = (False, False)
    dead_chips: frozenset[Chip] = frozenset()
    dead_links: frozenset[Link] = frozenset()
    """Only links between live chips: a dead chip's links are dead anyway."""

    def __post_init__(self) -> None:
        for name, size, wrapped, axis in (
            ("rows", self.rows, self.wrap[0], "x"),
            ("cols", self.cols, self.wrap[1], "y"),
        ):
            if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
                raise MeshError(f"a mesh needs {name} of at least 1, not {size!r}")
            if wrapped and size < 3:
                raise MeshError(
                    f"wrap={axis} joins the ends of a side of {size}, which are neighbours already: "
                    f"a wrapped side needs at least 3 {name}, so leave the wrap out"
                )
        if int(self.rows) * int(self.cols) > MOST_CHIPS:
            raise MeshError(
                f"{self.rows}x{self.cols} is more than {MOST_CHIPS:,} chips, the most a mesh may have: check the sizes"
            )
        chips = frozenset((int(r), int(c)) for r, c in self.dead_chips)
        for chip in chips:
            self._inside(chip)
        if len(chips) == self.rows * self.cols:
            raise MeshError(f"all {len(chips)} chips of {self.rows}x{self.cols} are dead: at least one must be alive")
        links = frozenset(self._checked_link(link) for link in self.dead_links)
        links = frozenset((a, b) for a, b in links if a not in chips and b not in chips)
        object.__setattr__(self, "rows", int(self.rows))
        object.__setattr__(self, "cols", int(self.cols))
        object.__setattr__(self, "wrap", (bool(self.wrap[0]), bool(self.wrap[1])))
        object.__setattr__(self, "dead_chips", chips)
        object.__setattr__(self, "dead_links", links)

    def _inside(self, chip: Chip) -> Chip:
        if not (0 <= chip[0] < self.rows and 0 <= chip[1] < self.cols):
            raise MeshError(
                f"chip {chip[0]},{chip[1]} is outside the {self.rows}x{self.cols} mesh: "
                f"rows go from 0 to {self.rows - 1} and cols from 0 to {self.cols - 1}"
            )
        return chip

    def _checked_link(self, link: Link) -> Link:
        a, b = ((int(r), int(c)) for r, c in link)
        self._inside(a)
        self._inside(b)
        if b not in {chip for _, chip in self._around(a)}:
            raise MeshError(
                f"link {a[0]},{a[1]}:{b[0]},{b[1]} does not exist: a link joins two neighbouring chips, "
                "one row or one column apart (or across a wrapped rim)"
            )
        return (a, b) if a < b else (b, a)

    def _around(self, chip: Chip) -> Iterator[tuple[int, Chip]]:
        """(way, neighbour) for every link the intact mesh has at this chip."""
        for way, (dr, dc) in enumerate(STEP):
            r, c = chip[0] + dr, chip[1] + dc
            if self.wrap[0]:
                r %= self.rows
            if self.wrap[1]:
                c %= self.cols
            if 0 <= r < self.rows and 0 <= c < self.cols:
                yield way, (r, c)

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """Read the notation, e.g. `16x32 -4x2@6,12` or `tpu-v3-1024 -host@0,0 -link@3,4:3,5`."""
        from meshmend.mesh.notation import parse

        return parse(text)

    def __str__(self) -> str:
        from meshmend.mesh.notation import format_mesh

        return format_mesh(self)

    def __repr__(self) -> str:
        return f"Mesh.parse({str(self)!r})"

    def fail(self, *holes: str | Chip | Link, chips: Iterable[Chip] = (), links: Iterable[Link] = ()) -> Mesh:
        """The same mesh with more of it dead: `mesh.fail("-4x2@6,12", (3, 4), ((3, 4), (3, 5)))`."""
        from meshmend.mesh.notation import read_hole

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
        from meshmend.mesh.random_holes import fail_random

        return fail_random(self, seed, **counts)

    @property
    def intact(self) -> bool:
        """Whether nothing is dead."""
        return not self.dead_chips and not self.dead_links

    @property
    def size(self) -> int:
        """Chips, dead ones included: the length of arrays over chips."""
        return self.rows * self.cols

    def index(self, chip: Chip) -> int:
        """The chip's place in arrays over chips."""
        row, col = self._inside(chip)
        return row * self.cols + col

    def chip(self, index: int) -> Chip:
        """The (row, col) of a place in arrays over chips."""
        return divmod(int(index), self.cols)

    @cached_property
    def alive(self) -> npt.NDArray[np.bool_]:
        """Whether each chip lives."""
        alive = np.ones(self.size, bool)
        for row, col in self.dead_chips:
            alive[row * self.cols + col] = False
        return _frozen(alive)

    @cached_property
    def live(self) -> IntArray:
        """The live chips' indices, ascending."""
        return _frozen(np.flatnonzero(self.alive).astype(np.int32))

    @cached_property
    def place(self) -> IntArray:
        """The place of each chip in `live`; -1 for the dead, and for the index -1, which is no chip."""
        place = np.full(self.size + 1, -1, np.int32)
        place[self.live] = np.arange(len(self.live))
        return _frozen(place)

    @cached_property
    def neighbour(self) -> IntArray:
        """neighbour[chip, way]: the chip at the other end of that live link, or -1."""
        grid = np.arange(self.size, dtype=np.int32).reshape(self.rows, self.cols)
        out = np.full((self.size, 4), -1, np.int32)
        for way, (dr, dc) in enumerate(STEP):
            there = np.roll(grid, (-dr, -dc), (0, 1))
            axis = 0 if dr else 1
            if not self.wrap[axis]:
                rim: list[Any] = [slice(None), slice(None)]
                rim[axis] = -1 if dr + dc > 0 else 0
                there[tuple(rim)] = -1
            out[:, way] = there.ravel()
        out[~self.alive] = -1
        out[(out >= 0) & ~self.alive[out]] = -1
        for a, b in self.dead_links:
            for here, there_ in ((a, b), (b, a)):
                out[self.index(here), self.way(here, there_)] = -1
        return _frozen(out)

    def way(self, here: Chip, there: Chip) -> int:
        """The way (0 to 3) that leads from a chip to its neighbour."""
        for way, chip in self._around(here):
            if chip == there:
                return way
        raise MeshError(f"chips {here} and {there} are not neighbours in {self}")

    @cached_property
    def links(self) -> IntArray:
        """The live links, each once, as rows of (chip, way) with way E or S."""
        chip, way = np.nonzero(self.neighbour[:, 1:3] >= 0)
        return _frozen(np.stack([chip, way + 1], 1).astype(np.int32))

    @cached_property
    def components(self) -> tuple[IntArray, ...]:
        """The connected parts of the live chips, largest first."""
        part = np.where(self.alive, np.arange(self.size), -1)
        ends = self.links[:, 0], self.neighbour[self.links[:, 0], self.links[:, 1]]
        while True:
            low = np.minimum(part[ends[0]], part[ends[1]])
            new = part.copy()
            np.minimum.at(new, ends[0], low)
            np.minimum.at(new, ends[1], low)
            new[self.live] = new[new[self.live]]
            if np.array_equal(new, part):
                break
            part = new
        parts = [_frozen(np.flatnonzero(part == p).astype(np.int32)) for p in np.unique(part[self.live])]
        return tuple(sorted(parts, key=lambda p: (-len(p), int(p[0]))))

    @property
    def connected(self) -> bool:
        """Whether every live chip can reach every other."""
        return len(self.components) == 1

    def require_connected(self) -> None:
        """Raise `Disconnected`, with the sizes and the map, unless the live chips form one piece."""
        if self.connected:
            return
        from meshmend.mesh.ascii import text_map

        sizes = tuple(len(p) for p in self.components)
        listed = ", ".join(map(str, sizes[:8])) + (", …" if len(sizes) > 8 else "")
        raise Disconnected(
            f"the live chips of {self} fall apart into {len(sizes)} components of {listed} chips: "
            "go on with the biggest by mesh.largest() (--largest on the command line)\n"
            + text_map(self, components=True),
            sizes,
        )

    def largest(self) -> Mesh:
        """The mesh with every component but the biggest dead."""
        return self.fail(chips=[self.chip(i) for part in self.components[1:] for i in part])


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array, read-only: it is shared by all who ask for it."""
    array.flags.writeable = False
    return array
