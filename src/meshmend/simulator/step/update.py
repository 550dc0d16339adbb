"""The weight update: bytes that move through memory, and what a sharded update waits for.

Sharded, each chip updates the weights whose gradient it holds in full when reducing ends: the shares of which it is
the root. So the update takes as long as the **busiest root** needs. Trees have few roots by themselves; for a sharded
update their chunks get roots on all chips (`spread_roots`), which makes trees deeper and every share 1/N.

LARS and LAMB scale each layer's step by the **norms** of the whole layer. A chip holds a part of it, so parts are
summed over the mesh before the first new weight, and a layer's broadcast begins only when all of it is reduced. Where
a plan reduces and broadcasts at once, the layers follow each other: reducing up to layer i and broadcasting from it on
takes sum * (1 + its part), so the largest layer's part of the sum comes on top.
"""

from __future__ import annotations

from meshmend.mesh import Mesh
from meshmend.mesh.planners import LinkSpeed
from meshmend.simulator.step.models import Model

MOVED = {"sgd": 12, "momentum": 20, "adam": 28, "lars": 28, "lamb": 40}
"""Bytes per parameter that an update reads and writes, in float32: gradient, weight, state, and weight and state again;
LARS reads weights and gradients once more for their norms, LAMB also keeps its step in between."""
BY_NORMS = ("lars", "lamb")
"""Optimisers that need the norms of whole layers."""


def moving(model: Model, cores: int, part: float, memory: float) -> float:
    """Seconds in which a core updates that part of its replica's weights."""
    params = model.summed - model.sharded + model.sharded / cores
    return part * params * MOVED[model.optimizer] / memory


def waiting(model: Model, mesh: Mesh, total: float, link: LinkSpeed, overlap: bool) -> float:
    """Seconds that a sharded update waits for norms, beyond a sum of `total` seconds.

    `overlap` is whether the plan broadcasts while it reduces.
    """
    if model.optimizer not in BY_NORMS:
        return 0.0
    around = sum((side // 2 if wrapped else side - 1) for side, wrapped in _sides(mesh))
    return 2 * around * link.latency + (total * model.largest if overlap else 0.0)


def _sides(mesh: Mesh) -> tuple[tuple[int, bool], ...]:
    """The chips along each side of a mesh, and whether its ends are joined."""
    return (mesh.rows, mesh.wrap[0]), (mesh.cols, mesh.wrap[1])
