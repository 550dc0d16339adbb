"""A mesh as text: one character per chip, `·` alive and `x` dead; missing links show as gaps where there is room.

·─·─·─·
│ │ │ │
·─x x ·

Layers of a mesh of three dimensions stand one below the other, each under its number. Of a graph, which no map shows,
the chips of each connected part are listed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshmend.mesh.cabling import Cabling
from meshmend.mesh.grid import E, Grid, S

MANY = 16
"""Chips of a part that are listed."""
WIDE = 64
"""Meshes with more columns than this are drawn without their links."""


def text_map(
    mesh: Cabling, *, components: bool = False, marks: dict[int, str] | None = None, links: bool | None = None
) -> str:
    """The map; `components` letters each connected part, `marks` puts a character on a chip."""
    if not isinstance(mesh, Grid):
        return "\n".join(f"{len(part)} chips: {_listed(part.tolist())}" for part in mesh.components[:8])
    symbol = np.where(mesh.alive, "·", "x").astype(object)
    if components:
        for number, part in enumerate(mesh.components):
            symbol[part] = "abcdefghijklmnopqrstuvw"[min(number, 22)]
    for index, mark in (marks or {}).items():
        symbol[index] = mark
    if links is None:
        links = mesh.cols <= WIDE and mesh.rows <= WIDE and _lacks_links(mesh)
    shape = mesh.layers, mesh.rows, mesh.cols
    east, south = ((mesh.neighbour[:, way] >= 0).reshape(shape) for way in (E, S))
    maps = [_layer(mesh, *layer, links=links) for layer in zip(symbol.reshape(shape), east, south, strict=True)]
    if mesh.layers == 1:
        return maps[0]
    return "\n".join(f"layer {number}\n{text}" for number, text in enumerate(maps))


def _layer(mesh: Grid, grid: Any, east: Any, south: Any, *, links: bool) -> str:
    if not links:
        return "\n".join(" ".join(row) for row in grid)
    lines = []
    for r in range(mesh.rows):
        lines.append("".join(grid[r, c] + ("─" if east[r, c] else " ") for c in range(mesh.cols)).rstrip())
        lines.append(" ".join("│" if south[r, c] else " " for c in range(mesh.cols)).rstrip())
    return "\n".join(lines[:-1] if not mesh.wrap[0] else lines)


def _lacks_links(mesh: Grid) -> bool:
    """Whether some link between two live chips is dead."""
    whole = Grid(mesh.rows, mesh.cols, mesh.wrap, layers=mesh.layers).neighbour
    return bool(((mesh.neighbour < 0) & (whole >= 0) & mesh.alive[:, None] & mesh.alive[whole]).any())


def _listed(chips: list[int]) -> str:
    return " ".join(map(str, chips[:MANY])) + " …" * (len(chips) > MANY)
