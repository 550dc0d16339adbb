"""A mesh of three dimensions as one small picture: layers behind each other, dead chips marked."""

from __future__ import annotations

import numpy as np

from meshmend.base.theme import CHIP, DEAD_CHIP, IDLE, MUTED
from meshmend.mesh import Mesh
from meshmend.mesh.drawing.marks import num, path, square, text

SLANT = (0.45, -0.33)
"""Where the next layer lies, to the right and down, in cells."""


def isometric(mesh: Mesh, wide: int) -> tuple[int, list[str]]:
    """The picture's height and elements; nothing for a flat mesh."""
    if mesh.layers == 1:
        return 0, []
    row, col, layer = mesh.positions()
    x, y = col + SLANT[0] * layer, row + SLANT[1] * layer
    cell = min(34.0, wide / (float(np.ptp(x)) + 1))
    x, y = (x - x.min() + 0.5) * cell, 24 + (y - y.min() + 0.5) * cell
    across = [
        f"M{num(x[a])} {num(y[a])}L{num(x[b])} {num(y[b])}"
        for a, b in zip(mesh.links[:, 0], mesh.neighbour[tuple(mesh.links.T)], strict=True)
        if abs(row[a] - row[b]) + abs(col[a] - col[b]) + abs(layer[a] - layer[b]) == 1  # wraps would cross all of it
    ]
    side = max(1.5, 0.3 * cell)
    elements = [
        text(0, 10, f"all {mesh.layers} layers", font_weight=600),
        text(wide, 10, "layer 0 in front", MUTED, text_anchor="end"),
        path("".join(across), stroke=IDLE, stroke_width=max(0.5, 0.04 * cell)),
    ]
    for alive, colour, scale in ((True, CHIP, 1.0), (False, DEAD_CHIP, 1.4)):
        chips = np.flatnonzero(mesh.alive == alive)
        if len(chips):
            squares = "".join(square(float(x[i]), float(y[i]), scale * side) for i in chips[::-1])
            elements.append(path(squares, class_=f"mm-whole-{'live' if alive else 'dead'}", fill=colour))
    return int(float(y.max()) + cell), elements
