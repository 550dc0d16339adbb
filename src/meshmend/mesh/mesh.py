"""What exists, what is dead and what is slow: an immutable mesh or torus of chips with a hole in it.

The grid (chips, ways, links, wraps) is that of `grid.py`; what is dead of it, and which of its links carry less than
the others, that of `fabric.py`. Networks that lie on no grid are graphs (`graph.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from meshmend.errors import MeshError, PlanError
from meshmend.mesh.cabling import IntArray
from meshmend.mesh.fabric import Broken, Fabric
from meshmend.mesh.graph import Graph, graph_from
from meshmend.mesh.graph_notation import is_graph
from meshmend.mesh.grid import STEP, Grid, around_all
from meshmend.mesh.notation import format_mesh, parse, read_hole, read_slow


@dataclass(frozen=True)
class Mesh(Fabric, Grid):
    """A `rows` x `cols` (x `layers`) mesh with dead and slow parts; `wrap` joins opposite rims into rings."""

    axis_speed: tuple[Fraction, ...] = field(default=(), kw_only=True)
    """How fast the links along each axis are, as a part of a whole link's speed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        speeds = (*(Fraction(s) for s in self.axis_speed), *[Fraction(1)] * len(self.dims))[: len(self.dims)]
        object.__setattr__(self, "axis_speed", speeds)
        self.settle(self.size_text)

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """Read the notation, e.g. `16x32 -4x2@6,12` or `8x8x8 wrap=xyz -host@0,0,3 ~0.5@3,4,0:3,5,0`."""
        if is_graph(text):
            raise MeshError(f"{Graph.parse(text)} is a graph, but a grid is needed: give ROWSxCOLS, such as 16x32")
        grid, dead, slow = parse(text)
        try:
            axes = tuple(slow.axes.get(axis, Fraction(1)) for axis in range(len(grid.dims)))
            return cls(
                grid.rows, grid.cols, grid.wrap, frozenset(dead.chips), frozenset(dead.links),
                layers=grid.layers, axis_speed=axes, slow=frozenset(slow.links.items()),
            )  # fmt: skip
        except MeshError as error:
            raise MeshError(f"cannot build {text!r}: {error}") from None

    @staticmethod
    def from_links(links: Iterable[tuple[Any, ...]] | Mapping[tuple[int, int], Any]) -> Graph:
        """A network that is no grid, from its links: pairs of chips, which are numbered from 0.

        `[(0, 1), (1, 2), (2, 0)]`; with speeds as `{(0, 1): 0.5}` or `(0, 1, 0.5)`, parts of a whole link's. Where
        two chips are joined by several cables, give them as one link: two of four cables are a speed of 0.5.
        """
        return graph_from(links)

    def __str__(self) -> str:
        return self.notation

    def __repr__(self) -> str:
        return f"Mesh.parse({str(self)!r})"

    @cached_property
    def notation(self) -> str:
        """One line that names this mesh and no other; files hold it."""
        return format_mesh(self, self.dead_chips, self.dead_links, self.axis_speed, dict(self.slow))

    @cached_property
    def usual(self) -> tuple[Fraction, ...]:
        """The speed of the links in each way, where `slow` names no other."""
        return tuple(self.axis_speed[STEP[way][0]] for way in range(len(self.ways)))

    @cached_property
    def rimless(self) -> bool:
        """Whether all sides are wrapped, so that no chip lies at a rim."""
        return all(wrapped for side, wrapped in zip(self.dims, self.wrap, strict=True) if side > 1)

    @cached_property
    def middle(self) -> int:
        """The live chip nearest to the middle."""
        off = sum(
            np.abs(place - (side - 1) / 2) for place, side in zip(self.positions(self.live), self.dims, strict=True)
        )
        return int(self.live[int(np.argmin(off))])

    @cached_property
    def inwards(self) -> IntArray:
        """The places of the live chips in `live`, from the rims inwards."""
        places = zip(self.positions(self.live), self.dims, self.wrap, strict=True)
        apart = [np.minimum(place, side - 1 - place) for place, side, wrapped in places if not wrapped]
        order = np.argsort(np.min(apart, 0), kind="stable") if apart else np.arange(len(self.live))
        return order.astype(np.int32)

    @cached_property
    def neighbour(self) -> IntArray:
        """neighbour[chip, way]: the chip at the other end of that live link, or -1."""
        return self.left_of(around_all(self))

    def read(self, word: str) -> Broken:
        """What one word of the notation such as `-4x2@6,12` kills or slows down."""
        if not word.startswith("~"):
            dead = read_hole(self, word, word)
            return Broken(dead.chips, dead.links, {})
        found = read_slow(self, word, word)
        if found.axes:
            raise MeshError(
                f"cannot fail {word!r}: the speed of an axis is fixed when the mesh is made, so give it to Mesh.parse"
            )
        return Broken([], [], found.links)


def on_grid(mesh: Fabric, what: str, instead: str) -> Mesh:
    """The mesh, or a `PlanError` if it is a graph: this needs rows and columns."""
    if isinstance(mesh, Mesh):
        return mesh
    raise PlanError(f"{what} a grid of rows and columns, and {mesh} is a graph: {instead}")
