"""The grid that a mesh lies on: chips, ways, links and wraps, in two or three dimensions. Nothing is dead here.

A chip is named by (row, col) in the interface, or by (row, col, layer) where there are several layers, and by
`(layer * rows + row) * cols + col` in arrays. A directed link is named by the chip it leaves and the way it goes:

            N = 0          F = 4   to the layer in front
    W = 3     +     E = 1
            S = 2          B = 5   to the layer behind

so that a tree, a load or a schedule is a plain array over chips or over links (`link_number`). A flat grid has the
first four ways only. `wrap=(x, y, z)` joins the ends of the columns (x, the axis of rows), of the rows (y) and of the
layers (z).

How ways and links are numbered is known here and nowhere else: others ask for `neighbour`, the chip at the end of a
link, and for `reverse`, the same link the other way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from meshmend.errors import MeshError

Chip = tuple[int, ...]
"""A chip's (row, col), or (row, col, layer)."""
Link = tuple[Chip, Chip]
"""The two chips that a link joins."""
IntArray = npt.NDArray[np.int32]
Ints = npt.NDArray[Any]
"""Chips, ways or link numbers, of any integer type."""

N, E, S, W, F, B = range(6)
WAYS = "NESWFB"
"""Every way there is; a flat grid has the first four."""
STEP: tuple[tuple[int, int], ...] = ((0, -1), (1, 1), (0, 1), (1, -1), (2, -1), (2, 1))
"""The axis along which each way goes, and whether back or forth."""
AXES = "xyz"
SIDES = ("rows", "cols", "layers")
FORWARD = (E, S, B)
"""One of the two ways of every link, so that each link is counted once."""
MOST_CHIPS = 2**20
"""More than any machine has, and few enough that a mistyped size does not fill the memory."""
_OPPOSITE = np.array([S, W, N, E, B, F], np.int8)


@overload
def opposite(way: int) -> int: ...


@overload
def opposite(way: Ints) -> Ints: ...


def opposite(way: Any) -> Any:
    """The way back, of one way or of an array of them."""
    return _OPPOSITE[way] if isinstance(way, np.ndarray) else int(_OPPOSITE[way])


@dataclass(frozen=True)
class Grid:
    """`rows` x `cols` (x `layers`) chips, each joined to its neighbours; `wrap` joins opposite rims into rings."""

    rows: int
    cols: int
    wrap: tuple[bool, ...] = ()
    layers: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        wrap = tuple(bool(wrapped) for wrapped in self.wrap) + (False,) * (len(AXES) - len(self.wrap))
        for name, size, wrapped, axis in zip(SIDES, (self.rows, self.cols, self.layers), wrap, AXES, strict=True):
            if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
                raise MeshError(f"a mesh needs {name} of at least 1, not {size!r}")
            if wrapped and size < 3:
                raise MeshError(
                    f"wrap={axis} joins the ends of a side of {size}, which are neighbours already: "
                    f"a wrapped side needs at least 3 {name}, so leave the wrap out"
                )
            object.__setattr__(self, name, int(size))
        object.__setattr__(self, "wrap", wrap[: len(self.dims)])
        if self.size > MOST_CHIPS:
            raise MeshError(
                f"{self.size_text} is more than {MOST_CHIPS:,} chips, the most a mesh may have: check the sizes"
            )

    @property
    def dims(self) -> tuple[int, ...]:
        """(rows, cols), or (rows, cols, layers) where there are several layers."""
        return (self.rows, self.cols) if self.layers == 1 else (self.rows, self.cols, self.layers)

    @property
    def ways(self) -> str:
        """The ways that links of this grid go."""
        return WAYS[: 2 * len(self.dims)]

    @property
    def size(self) -> int:
        """Chips, dead ones included: the length of arrays over chips."""
        return self.rows * self.cols * self.layers

    @property
    def size_text(self) -> str:
        """The sides as the notation has them."""
        return "x".join(map(str, self.dims))

    @property
    def link_numbers(self) -> int:
        """The length of arrays over directed links, those that do not exist included."""
        return len(self.ways) * self.size

    @overload
    def link_number(self, chip: int, way: int) -> int: ...

    @overload
    def link_number(self, chip: Ints, way: Ints | int) -> Ints: ...

    def link_number(self, chip: Any, way: Any) -> Any:
        """The number of the directed link that leaves a chip in this way."""
        return len(self.ways) * chip + way

    @overload
    def link_source(self, link: int) -> tuple[int, int]: ...

    @overload
    def link_source(self, link: Ints) -> tuple[Ints, Ints]: ...

    def link_source(self, link: Any) -> tuple[Any, Any]:
        """(chip, way): where a directed link begins, and the way it goes."""
        return link // len(self.ways), link % len(self.ways)

    def inside(self, chip: Chip) -> Chip:
        """The chip, or a `MeshError` if it lies outside the grid."""
        if len(chip) != len(self.dims):
            raise MeshError(
                f"chip {chip_text(chip)} has {len(chip)} coordinates, and a chip of {self.size_text} has "
                f"{len(self.dims)}: give {', '.join(side[:-1] for side in SIDES[: len(self.dims)])}"
            )
        if not all(0 <= place < size for place, size in zip(chip, self.dims, strict=True)):
            sides = [f"{name} go from 0 to {size - 1}" for name, size in zip(SIDES, self.dims, strict=False)]
            raise MeshError(
                f"chip {chip_text(chip)} is outside the {self.size_text} mesh: "
                + ", ".join(sides[:-1]) + f" and {sides[-1].replace(' go', '', 1)}"
            )  # fmt: skip
        return chip

    def index(self, chip: Chip) -> int:
        """The chip's position in arrays over chips."""
        row, col, *layer = self.inside(chip)
        return (sum(layer) * self.rows + row) * self.cols + col

    def chip(self, index: int) -> Chip:
        """The (row, col) or (row, col, layer) of a position in arrays over chips."""
        rest, col = divmod(int(index), self.cols)
        layer, row = divmod(rest, self.rows)
        return (row, col) if self.layers == 1 else (row, col, layer)

    def name(self, index: int) -> str:
        """How a chip is written."""
        return chip_text(self.chip(index))

    def positions(self, chips: npt.NDArray[np.integer[Any]] | None = None) -> tuple[npt.NDArray[Any], ...]:
        """Arrays of the rows and columns (and layers) of these chips, or of all."""
        rest, col = np.divmod(np.arange(self.size) if chips is None else chips, self.cols)
        layer, row = np.divmod(rest, self.rows)
        return (row, col, layer)[: len(self.dims)]

    def around(self, chip: Chip) -> Iterator[tuple[int, Chip]]:
        """(way, neighbour) for every link of the grid at this chip."""
        for way in range(len(self.ways)):
            axis, step = STEP[way]
            place = chip[axis] + step
            if self.wrap[axis]:
                place %= self.dims[axis]
            if 0 <= place < self.dims[axis]:
                yield way, (*chip[:axis], place, *chip[axis + 1 :])

    def way(self, here: Chip, there: Chip) -> int:
        """The way that leads from a chip to its neighbour."""
        for way, chip in self.around(here):
            if chip == there:
                return way
        raise MeshError(f"chips {here} and {there} are not neighbours in {self}")

    def link(self, link: Link) -> Link:
        """The link with its lower end first, or a `MeshError` if the grid has no such link."""
        a, b = (self.inside(tuple(int(place) for place in chip)) for chip in link)
        if b not in {chip for _, chip in self.around(a)}:
            raise MeshError(
                f"link {chip_text(a)}:{chip_text(b)} does not exist: a link joins two neighbouring chips, "
                "one row or one column" + " or one layer" * (len(a) > 2) + " apart (or across a wrapped rim)"
            )
        return (a, b) if a < b else (b, a)

    @cached_property
    def neighbour(self) -> IntArray:
        """neighbour[chip, way]: the chip at the other end of that link, or -1."""
        return frozen(self._around_all())

    def _around_all(self) -> IntArray:
        grid = np.arange(self.size, dtype=np.int32).reshape(self.layers, self.rows, self.cols)
        out = np.full((self.size, len(self.ways)), -1, np.int32)
        for way in range(len(self.ways)):
            axis, step = STEP[way]
            in_grid = (1, 2, 0)[axis]
            there = np.roll(grid, -step, in_grid)
            if not self.wrap[axis]:
                rim: list[Any] = [slice(None)] * 3
                rim[in_grid] = -1 if step > 0 else 0
                there[tuple(rim)] = -1
            out[:, way] = there.ravel()
        return out

    @cached_property
    def reverse(self) -> IntArray:
        """reverse[link]: the number of the same link the other way; -1 where there is no link."""
        way = np.tile(np.arange(len(self.ways)), self.size)
        there = self.neighbour.ravel()
        return frozen(np.where(there >= 0, self.link_number(there, opposite(way)), -1).astype(np.int32))

    @cached_property
    def links(self) -> IntArray:
        """The links, each once, as rows of (chip, way) with way E, S or B."""
        forward = np.array(FORWARD[: len(self.dims)])
        chip, way = np.nonzero(self.neighbour[:, forward] >= 0)
        return frozen(np.stack([chip, forward[way]], 1).astype(np.int32))

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


def chip_text(chip: Chip) -> str:
    """How the notation writes a chip: `row,col` or `row,col,layer`."""
    return ",".join(map(str, chip))


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array, read-only: it is shared by everyone who asks for it."""
    array.flags.writeable = False
    return array
