"""Links that are too slow to help: a plan may also leave them out.

Trees for single chips are moved piece by piece, and a piece on a link at a hundredth of the speed takes as long as a
hundred elsewhere. Where a plan stays far below its bound, the same mesh is planned as if its slowest links were dead,
then its next slowest, while the live chips stay in one piece; the fastest of these plans is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np

from meshmend.mesh import Fabric
from meshmend.mesh.collectives.plan import CollectivePlan

Network = TypeVar("Network", bound=Fabric)
NEAR = 0.95
"""The part of the bound from which on no other plan is tried."""
TRIES = 4


def around_slow_links(mesh: Network, make: Callable[[Network], CollectivePlan]) -> CollectivePlan:
    """The plan of the mesh, or a faster one that leaves its slowest links out."""
    best = make(mesh)
    for without in _without_slowest(mesh) if best.efficiency < NEAR else ():
        other = replace(make(without), mesh=mesh, bound=best.bound)
        if other.algbw > best.algbw:
            best = other
    return best


def _without_slowest(mesh: Network) -> list[Network]:
    """The mesh without the links of the slowest kind, then without those of the next, while it stays connected."""
    units = mesh.units[mesh.link_number(*mesh.links.T)]
    out: list[Network] = []
    for most in np.unique(units)[:-1][:TRIES]:
        chip, way = mesh.links[units <= most].T
        ends = zip(chip.tolist(), mesh.neighbour[chip, way].tolist(), strict=True)
        without = mesh.fail(links=[(mesh.chip(a), mesh.chip(b)) for a, b in ends])
        if not without.connected:
            break
        out.append(without)
    return out
