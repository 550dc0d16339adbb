"""The grid that a mesh lies on: chips, ways, links and wraps. Nothing is dead here.

A chip is named by (row, col) in the interface and by `row * cols + col` in arrays. A directed link is named by the
chip it leaves and the way it goes, with the ways

            N = 0
    W = 3     +     E = 1          the way back is `opposite(way)`
            S = 2

so that a tree, a load or a schedule is a plain array over chips or over links (`link_number`). `wrap=(x, y)` joins
the ends of the columns (x, the rows' axis) and of the rows (y, the columns' axis).

How ways and links are numbered is known here and in the compiled loops (`kernel`), which cannot call functions of other
files; a third dimension would change both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from meshmend.errors import MeshError

Chip = tuple[int, int]
"""A chip's (row, col)."""
Link = tuple[Chip, Chip]
"""The two chips that a link joins."""
IntArray = npt.NDArray[np.int32]
Ints = npt.NDArray[Any]
"""Chips, ways or link numbers, of any integer type."""

N, E, S, W = range(4)
WAYS = "NESW"
FORWARD = (E, S)
"""One of the two ways of every link, so that each link is counted once."""
STEP: tuple[Chip, ...] = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Rows and columns that each way goes."""
MOST_CHIPS = 2**20
"""More than any machine has, and few enough that a mistyped size does not fill the memory."""


@overload
def opposite(way: int) -> int: ...


@overload
def opposite(way: Ints) -> Ints: ...


def opposite(way: Any) -> Any:
    """The way back, of one way or of an array of them."""
    return way ^ 2


@overload
def link_number(chip: int, way: int) -> int: ...


@overload
def link_number(chip: Ints, way: Ints) -> Ints: ...


def link_number(chip: Any, way: Any) -> Any:
    """The number of the directed link that leaves a chip in this way."""
    return len(WAYS) * chip + way


@overload
def link_source(link: int) -> tuple[int, int]: ...


@overload
def link_source(link: Ints) -> tuple[Ints, Ints]: ...


def link_source(link: Any) -> tuple[Any, Any]:
    """(chip, way): where a directed link begins, and the way it goes."""
    return link // len(WAYS), link % len(WAYS)


@dataclass(frozen=True)
class Grid:
    """`rows` x `cols` chips, each joined to its neighbours; `wrap` joins opposite rims into rings."""

    rows: int
    cols: int
    wrap: tuple[bool, bool] = (False, False)

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
        object.__setattr__(self, "rows", int(self.rows))
        object.__setattr__(self, "cols", int(self.cols))
        object.__setattr__(self, "wrap", (bool(self.wrap[0]), bool(self.wrap[1])))

    @property
    def size(self) -> int:
        """Chips, dead ones included: the length of arrays over chips."""
        return self.rows * self.cols

    @property
    def link_numbers(self) -> int:
        """The length of arrays over directed links, those that do not exist included."""
        return len(WAYS) * self.size

    def inside(self, chip: Chip) -> Chip:
        """The chip, or a `MeshError` if it lies outside the grid."""
        if not (0 <= chip[0] < self.rows and 0 <= chip[1] < self.cols):
            raise MeshError(
                f"chip {chip[0]},{chip[1]} is outside the {self.rows}x{self.cols} mesh: "
                f"rows go from 0 to {self.rows - 1} and cols from 0 to {self.cols - 1}"
            )
        return chip

    def index(self, chip: Chip) -> int:
        """The chip's position in arrays over chips."""
        row, col = self.inside(chip)
        return row * self.cols + col

    def chip(self, index: int) -> Chip:
        """The (row, col) of a position in arrays over chips."""
        return divmod(int(index), self.cols)

    def positions(self, chips: npt.NDArray[np.integer[Any]] | None = None) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Arrays of the rows and columns of these chips, or of all."""
        return np.divmod(np.arange(self.size) if chips is None else chips, self.cols)

    def around(self, chip: Chip) -> Iterator[tuple[int, Chip]]:
        """(way, neighbour) for every link of the grid at this chip."""
        for way, (down, right) in enumerate(STEP):
            row, col = chip[0] + down, chip[1] + right
            if self.wrap[0]:
                row %= self.rows
            if self.wrap[1]:
                col %= self.cols
            if 0 <= row < self.rows and 0 <= col < self.cols:
                yield way, (row, col)

    def way(self, here: Chip, there: Chip) -> int:
        """The way that leads from a chip to its neighbour."""
        for way, chip in self.around(here):
            if chip == there:
                return way
        raise MeshError(f"chips {here} and {there} are not neighbours in {self}")

    def link(self, link: Link) -> Link:
        """The link with its lower end first, or a `MeshError` if the grid has no such link."""
        a, b = ((int(row), int(col)) for row, col in link)
        self.inside(a)
        self.inside(b)
        if b not in {chip for _, chip in self.around(a)}:
            raise MeshError(
                f"link {a[0]},{a[1]}:{b[0]},{b[1]} does not exist: a link joins two neighbouring chips, "
                "one row or one column apart (or across a wrapped rim)"
            )
        return (a, b) if a < b else (b, a)

    @cached_property
    def neighbour(self) -> IntArray:
        """neighbour[chip, way]: the chip at the other end of that link, or -1."""
        return frozen(self._around_all())

    def _around_all(self) -> IntArray:
        grid = np.arange(self.size, dtype=np.int32).reshape(self.rows, self.cols)
        out = np.full((self.size, len(WAYS)), -1, np.int32)
        for way, (down, right) in enumerate(STEP):
            there = np.roll(grid, (-down, -right), (0, 1))
            axis = 0 if down else 1
            if not self.wrap[axis]:
                rim: list[Any] = [slice(None), slice(None)]
                rim[axis] = -1 if down + right > 0 else 0
                there[tuple(rim)] = -1
            out[:, way] = there.ravel()
        return out

    @cached_property
    def links(self) -> IntArray:
        """The links, each once, as rows of (chip, way) with way E or S."""
        chip, way = np.nonzero(self.neighbour[:, FORWARD] >= 0)
        return frozen(np.stack([chip, np.array(FORWARD)[way]], 1).astype(np.int32))

    @cached_property
    def directed_links(self) -> npt.NDArray[np.int64]:
        """The numbers of the links, each way by itself."""
        return frozen(np.flatnonzero(self.neighbour.ravel() >= 0))

    def ends(self, chip: int, way: int) -> Link:
        """The two chips that a link joins, the one it leaves first."""
        return self.chip(chip), self.chip(self.neighbour[chip, way])

    @cached_property
    def alive(self) -> npt.NDArray[np.bool_]:
        """Whether each chip lives."""
        return frozen(np.ones(self.size, bool))

    @cached_property
    def live(self) -> IntArray:
        """The live chips' indices, ascending."""
        return frozen(np.flatnonzero(self.alive).astype(np.int32))

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
        parts = [frozen(np.flatnonzero(part == p).astype(np.int32)) for p in np.unique(part[self.live])]
        return tuple(sorted(parts, key=lambda p: (-len(p), int(p[0]))))


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array, read-only: it is shared by everyone who asks for it."""
    array.flags.writeable = False
    return array
