"""Groups of chips that sum apart, all at the same time: the same position of every tile (arXiv 2011.03641).

With model parallelism a replica is a **tile** of chips, and each chip of a tile holds a part of the model. Gradients of
one part are summed over the chips that hold it: those at the same position of every tile, its **peers**.

    tile(2, 2) on 4x6       0 1 0 1 0 1
                            2 3 2 3 2 3        four groups of six peers
                            0 1 0 1 0 1
                            2 3 2 3 2 3

A tile with a dead chip has lost a part of its replica, so none of its chips is in a group any more. Those that live
still forward what the others send.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshmend.errors import PlanError
from meshmend.mesh import Mesh
from meshmend.mesh.grid import SIDES

Labels = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Tile:
    """The chips of one replica: so many rows and columns (and layers)."""

    dims: tuple[int, ...]

    def __str__(self) -> str:
        return "x".join(map(str, self.dims))

    @property
    def size(self) -> int:
        """Chips in a tile, which is the number of groups."""
        return math.prod(self.dims)

    def check(self, mesh: Mesh) -> None:
        """Raise a `PlanError` unless the tile divides the mesh into several tiles of several chips."""
        if len(self.dims) != len(mesh.dims):
            raise PlanError(
                f"a tile of {self} has {len(self.dims)} sides, and {mesh.size_text} has {len(mesh.dims)}: "
                f"give {', '.join(SIDES[: len(mesh.dims)])}"
            )
        for side, whole, name in zip(self.dims, mesh.dims, SIDES, strict=False):
            if whole % side:
                raise PlanError(
                    f"tiles of {self} do not divide {mesh.size_text}: {whole} {name} are not a multiple of {side}, so "
                    f"give a divisor of {whole}"
                )
        if self.size == 1:
            raise PlanError("a tile of one chip makes one group of all chips, a plain all-reduce: leave groups out")
        if self.size == mesh.size:
            raise PlanError(
                f"one tile of {self} covers all of {mesh.size_text}, so that no chip has a peer: give a smaller tile"
            )

    def tiles(self, mesh: Mesh) -> Labels:
        """The number of the tile that each chip lies in."""
        number = np.zeros(mesh.size, np.int32)
        for place, side, whole in zip(mesh.positions(), self.dims, mesh.dims, strict=True):
            number = (number * (whole // side) + place // side).astype(np.int32)
        return number

    def whole(self, mesh: Mesh) -> npt.NDArray[np.bool_]:
        """Whether every chip of each chip's tile lives."""
        tile = self.tiles(mesh)
        return np.asarray(np.bincount(tile, ~mesh.alive)[tile] == 0)

    def groups(self, mesh: Mesh) -> Labels:
        """The group of each chip: its position in its tile, or -1 where the tile is out."""
        self.check(mesh)
        position = np.zeros(mesh.size, np.int32)
        for place, side in zip(mesh.positions(), self.dims, strict=True):
            position = (position * side + place % side).astype(np.int32)
        whole = self.whole(mesh)
        left = np.count_nonzero(whole) // self.size
        if left < 2:
            raise PlanError(
                f"of the tiles of {self} on {mesh}, {left} {'has' if left == 1 else 'have'} all chips alive, and a sum "
                "needs at least 2: give a smaller tile"
            )
        return np.where(whole, position, -1).astype(np.int32)


def tile(*dims: int) -> Tile:
    """Groups of peers: chips at the same position of every tile of `rows, cols` (or `rows, cols, layers`) chips."""
    if len(dims) not in (2, 3) or any(isinstance(d, bool) or not isinstance(d, (int, np.integer)) for d in dims):
        raise PlanError(f"tile{dims}: give rows and columns of a tile (and layers) as whole numbers, as in tile(2, 2)")
    if min(dims) < 1:
        raise PlanError(f"tile{dims}: a tile has at least 1 chip along each side")
    return Tile(tuple(int(side) for side in dims))


def read_tile(text: str) -> Tile:
    """A tile as the command line has it: `4x1`."""
    sides = text.lower().split("x")
    if not all(side.isdecimal() for side in sides):
        raise PlanError(f"cannot read the tile {text!r}: give rows x columns (x layers) of a tile, such as 4x1")
    return tile(*map(int, sides))
