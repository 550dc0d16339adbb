"""A mesh as text: one character per chip, `·` alive and `x` dead; missing links show as gaps where there is room.

·─·─·─·
│ │ │ │
·─x x ·
"""

from __future__ import annotations

import numpy as np

from meshmend.mesh.grid import E, Grid, S

WIDE = 64
"""Meshes with more columns than this are drawn without their links."""


def text_map(
    mesh: Grid, *, components: bool = False, marks: dict[int, str] | None = None, links: bool | None = None
) -> str:
    """The map; `components` letters each connected part, `marks` puts a character on a chip."""
    symbol = np.where(mesh.alive, "·", "x").astype(object)
    if components:
        for number, part in enumerate(mesh.components):
            symbol[part] = "abcdefghijklmnopqrstuvw"[min(number, 22)]
    for index, mark in (marks or {}).items():
        symbol[index] = mark
    grid = symbol.reshape(mesh.rows, mesh.cols)
    if links is None:
        links = mesh.cols <= WIDE and mesh.rows <= WIDE and _lacks_links(mesh)
    if not links:
        return "\n".join(" ".join(row) for row in grid)
    east = (mesh.neighbour[:, E] >= 0).reshape(grid.shape)
    south = (mesh.neighbour[:, S] >= 0).reshape(grid.shape)
    lines = []
    for r in range(mesh.rows):
        lines.append("".join(grid[r, c] + ("─" if east[r, c] else " ") for c in range(mesh.cols)).rstrip())
        lines.append(" ".join("│" if south[r, c] else " " for c in range(mesh.cols)).rstrip())
    return "\n".join(lines[:-1] if not mesh.wrap[0] else lines)


def _lacks_links(mesh: Grid) -> bool:
    """Whether some link between two live chips is dead."""
    whole = Grid(mesh.rows, mesh.cols, mesh.wrap).neighbour
    return bool(((mesh.neighbour < 0) & (whole >= 0) & mesh.alive[:, None] & mesh.alive[whole]).any())
