"""How chips and links are numbered, whatever joins what.

A chip is a number in arrays over chips. A directed link is named by the chip it leaves and the **way** it goes, so that
a tree, a load or a schedule is a plain array over chips or over links (`link_number`). Which chip lies at the end of a
way is in `neighbour`, and the same link the other way in `reverse`; nobody but grids and graphs knows more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Chip = tuple[int, ...]
"""A chip's (row, col), or (row, col, layer); on a graph its (number,)."""
Link = tuple[Chip, Chip]
"""The two chips that a link joins."""
IntArray = npt.NDArray[np.int32]
Ints = npt.NDArray[Any]
"""Chips, ways or link numbers, of any integer type."""

MOST_CHIPS = 2**20
"""More than any machine has, and few enough that a mistyped size does not fill the memory."""


class Cabling(ABC):
    """Chips and the links between them, by number."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Chips, dead ones included: the length of arrays over chips."""

    @property
    @abstractmethod
    def ways(self) -> str:
        """The ways that links go, a letter each."""

    @property
    @abstractmethod
    def neighbour(self) -> IntArray:
        """neighbour[chip, way]: the chip at the other end of that live link, or -1."""

    @property
    @abstractmethod
    def reverse(self) -> IntArray:
        """reverse[link]: the number of the same link the other way; -1 where there is no link."""

    @property
    @abstractmethod
    def links(self) -> IntArray:
        """The links, each once, as rows of (chip, way)."""

    @abstractmethod
    def inside(self, chip: Chip) -> Chip:
        """The chip, or a `MeshError` if there is none of this name."""

    @abstractmethod
    def link(self, link: Link) -> Link:
        """The link with its lower end first, or a `MeshError` if there is no such link."""

    @abstractmethod
    def way(self, here: Chip, there: Chip) -> int:
        """The way that leads from a chip to its neighbour."""

    @abstractmethod
    def index(self, chip: Chip) -> int:
        """The chip's position in arrays over chips."""

    @abstractmethod
    def chip(self, index: int) -> Chip:
        """The name of a position in arrays over chips, as numbers."""

    @property
    def link_numbers(self) -> int:
        """The length of arrays over directed links, those that do not exist included."""
        return len(self.ways) * self.size

    def link_number(self, chip: Any, way: Any) -> Any:
        """The number of the directed link that leaves a chip in this way; of arrays, an array."""
        return len(self.ways) * chip + way

    def link_source(self, link: Any) -> tuple[Any, Any]:
        """(chip, way): where a directed link begins, and the way it goes; of an array, arrays."""
        return link // len(self.ways), link % len(self.ways)

    def name(self, index: int) -> str:
        """How a chip is written."""
        return chip_text(self.chip(index))

    def ends(self, chip: int, way: int) -> Link:
        """The two chips that a link joins, the one it leaves first."""
        return self.chip(chip), self.chip(self.neighbour[chip, way])

    @cached_property
    def directed_links(self) -> npt.NDArray[np.int64]:
        """The numbers of the links, each way by itself."""
        return frozen(np.flatnonzero(self.neighbour.ravel() >= 0))

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
    """How the notation writes a chip: `row,col` or `row,col,layer`, or its number."""
    return ",".join(map(str, chip))


def speed_text(speed: Fraction) -> str:
    """A speed as a decimal where that is exact, else as a fraction."""
    text = f"{float(speed):g}"
    return text if Fraction(text) == speed else str(speed)


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array, read-only: it is shared by everyone who asks for it."""
    array.flags.writeable = False
    return array
