"""Which way a packet leaves each chip for each other: first along the row, then along the column, then
through the layers.

Around a hole it takes a shortest path, and of several the one that goes along the row first. On an intact mesh that is
dimension order. Every hop comes one nearer, so that no packet goes in circles.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshmend.mesh import Mesh
from meshmend.mesh.grid import B, E, F, N, S, W

ROW_FIRST = (E, W, S, N, B, F)
"""Of two ways that are as short, the first is taken."""


def routes(mesh: Mesh) -> npt.NDArray[np.int8]:
    """Return a table [here, there] of the way to leave by; -1 if there is none."""
    table = np.full((mesh.size, mesh.size), -1, np.int8)
    for there in mesh.live:
        far = distances(mesh, int(there))
        for way in reversed(ROW_FIRST[: len(mesh.ways)]):
            next_ = mesh.neighbour[:, way]
            nearer = (next_ >= 0) & (far > 0) & (far[next_] == far - 1)
            table[nearer, there] = way
    return table


def distances(mesh: Mesh, there: int) -> npt.NDArray[np.int32]:
    """Return the hops from each chip to that one; -1 if there is no path."""
    far = np.full(mesh.size, -1, np.int32)
    far[there] = 0
    rim = np.array([there])
    while rim.size:
        around = np.unique(mesh.neighbour[rim])
        next_ = around[(around >= 0) & (far[around] < 0)]
        far[next_] = far[rim[0]] + 1
        rim = next_
    return far
