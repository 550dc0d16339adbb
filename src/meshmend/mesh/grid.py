"""The grid that a mesh lies on: chips, their links and wraps, in two or three dimensions. Nothing is dead here.

`wrap=(x, y, z)` joins the ends of the columns (x, the axis of rows), of the rows (y) and of the layers (z). How ways
and links are numbered is known in `numbering.py` and nowhere else: others ask for `neighbour`, the chip at the end of a
link, and for `reverse`, the same link the other way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from meshmend.errors import MeshError
from meshmend.mesh.cabling import Chip as Chip
from meshmend.mesh.cabling import IntArray as IntArray
from meshmend.mesh.cabling import Link as Link
from meshmend.mesh.cabling import chip_text as chip_text
from meshmend.mesh.cabling import frozen
from meshmend.mesh.numbering import AXES as AXES
from meshmend.mesh.numbering import FORWARD, Numbering
from meshmend.mesh.numbering import SIDES as SIDES
from meshmend.mesh.numbering import STEP as STEP
from meshmend.mesh.numbering import WAYS as WAYS
from meshmend.mesh.numbering import B as B
from meshmend.mesh.numbering import E as E
from meshmend.mesh.numbering import F as F
from meshmend.mesh.numbering import N as N
from meshmend.mesh.numbering import S as S
from meshmend.mesh.numbering import W as W
from meshmend.mesh.numbering import opposite as opposite


@dataclass(frozen=True)
class Grid(Numbering):
    """`rows` x `cols` (x `layers`) chips, each joined to its neighbours; `wrap` joins opposite rims into rings."""

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
        return frozen(around_all(self))

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


def around_all(grid: Grid) -> IntArray:
    """[chip, way]: the chip at the other end of every link of the grid, or -1."""
    chips = np.arange(grid.size, dtype=np.int32).reshape(grid.layers, grid.rows, grid.cols)
    out = np.full((grid.size, len(grid.ways)), -1, np.int32)
    for way in range(len(grid.ways)):
        axis, step = STEP[way]
        in_array = (1, 2, 0)[axis]
        there = np.roll(chips, -step, in_array)
        if not grid.wrap[axis]:
            rim: list[Any] = [slice(None)] * 3
            rim[in_array] = -1 if step > 0 else 0
            there[tuple(rim)] = -1
        out[:, way] = there.ravel()
    return out
