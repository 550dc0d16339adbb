"""How the chips, ways and links of a grid are numbered, in two or three dimensions.

A chip is named by (row, col) in the interface, or by (row, col, layer) where there are several layers, and by
`(layer * rows + row) * cols + col` in arrays. A directed link is named by the chip it leaves and the way it goes:

            N = 0          F = 4   to the layer in front
    W = 3     +     E = 1
            S = 2          B = 5   to the layer behind

A flat grid has the first four ways only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from meshmend.errors import MeshError
from meshmend.mesh.cabling import MOST_CHIPS, Cabling, Chip, Ints, chip_text

N, E, S, W, F, B = range(6)
WAYS = "NESWFB"
"""Every way there is; a flat grid has the first four."""
STEP: tuple[tuple[int, int], ...] = ((0, -1), (1, 1), (0, 1), (1, -1), (2, -1), (2, 1))
"""The axis along which each way goes, and whether back or forth."""
AXES = "xyz"
SIDES = ("rows", "cols", "layers")
FORWARD = (E, S, B)
"""One of the two ways of every link, so that each link is counted once."""
_OPPOSITE = np.array([S, W, N, E, B, F], np.int8)


@overload
def opposite(way: int) -> int: ...


@overload
def opposite(way: Ints) -> Ints: ...


def opposite(way: Any) -> Any:
    """The way back, of one way or of an array of them."""
    return _OPPOSITE[way] if isinstance(way, np.ndarray) else int(_OPPOSITE[way])


@dataclass(frozen=True)
class Numbering(Cabling):
    """`rows` x `cols` (x `layers`) chips and the links between them, by name and by number."""

    rows: int
    cols: int
    wrap: tuple[bool, ...] = ()
    layers: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        wrap = tuple(bool(wrapped) for wrapped in self.wrap) + (False,) * (len(AXES) - len(self.wrap))
        for name, size, wrapped, axis in zip(SIDES, (self.rows, self.cols, self.layers), wrap, AXES, strict=True):
            if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
                raise MeshError(f"a mesh needs at least 1 {name[:-1]}, not {size!r}")
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

    def inside(self, chip: Chip) -> Chip:
        """The chip, or a `MeshError` if it lies outside the grid."""
        if len(chip) != len(self.dims):
            raise MeshError(
                f"chip {chip_text(chip)} has {len(chip)} coordinates, but a chip of {self.size_text} has "
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

    def positions(self, chips: npt.NDArray[np.integer[Any]] | None = None) -> tuple[npt.NDArray[Any], ...]:
        """Arrays of the rows and columns (and layers) of these chips, or of all."""
        rest, col = np.divmod(np.arange(self.size) if chips is None else chips, self.cols)
        layer, row = np.divmod(rest, self.rows)
        return (row, col, layer)[: len(self.dims)]
