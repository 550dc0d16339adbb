"""What no all-reduce of a payload can be faster than: latency and bandwidth together, with the chip that proves it.

Two facts hold for every plan, whatever its shape:

* **Bandwidth.** It takes at least payload / bound (`bound.py`).
* **A chip hears from its farthest.** Every bit of the sum depends on every chip's part. What a chip v has received
  before d(v, w) latencies have passed says nothing about the part of a chip w that is d(v, w) hops away. So the whole
  payload enters v after that, over v's own links: T ≥ d(v, w) · latency + payload / links(v).

The second is at least the diameter times the latency. On a mesh, corners have two links and the bound is just below
2 B, so that it is nearly the *sum* of the two terms, of which one usually takes the larger.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshmend.base.kernels import kernel
from meshmend.base.units import plural
from meshmend.mesh import Fabric, Mesh
from meshmend.mesh.planners.bound import bound, live_neighbours
from meshmend.mesh.planners.cost import LinkSpeed, link_speed

ALL_CHIPS = 4096
"""Live chips up to which every one is tried; of larger graphs and meshes with a hole, those with the fewest links."""


class Floor(NamedTuple):
    """Seconds that every plan takes at least, and why."""

    seconds: float
    reason: str


def floor(mesh: Fabric, nbytes: float, link: str | LinkSpeed = "tpu-v3") -> Floor:
    """The least time that an all-reduce of `nbytes` over all live chips can take."""
    speed, limit = link_speed(link), bound(mesh)
    payload = nbytes / speed.bandwidth
    whole = Floor(payload / limit.value, f"the payload over the bound of {limit.value:.3f} B")
    if len(mesh.live) == 1:
        return Floor(0.0, "one chip has nothing to sum")
    chips, hops = farthest(mesh)
    width = mesh.units.reshape(mesh.size, -1)[chips].sum(1) / mesh.whole
    times = hops * speed.latency + payload / width
    worst = int(np.argmax(times))
    heard = Floor(
        float(times[worst]),
        f"chip {mesh.name(int(chips[worst]))} is {plural(int(hops[worst]), 'hop')} from its farthest, and then the "
        f"payload enters over its own links of {width[worst]:g} B",
    )
    return max(whole, heard)


def farthest(mesh: Fabric) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Chips, and the hops from each to the live chip that is farthest from it."""
    if mesh.intact and isinstance(mesh, Mesh):
        ends = [
            np.full(mesh.size, side // 2) if wrapped else np.maximum(place, side - 1 - place)
            for side, wrapped, place in zip(mesh.dims, mesh.wrap, mesh.positions(), strict=True)
        ]
        return np.arange(mesh.size), np.sum(ends, 0).astype(np.int64)
    near, _ = live_neighbours(mesh)
    chosen = np.arange(len(near))
    if len(near) > ALL_CHIPS:
        chosen = np.argsort((near >= 0).sum(1), kind="stable")[:ALL_CHIPS]
    hops = _eccentricities(near.astype(np.int64), chosen)
    return mesh.live[chosen].astype(np.int64), hops


@kernel
def _eccentricities(near: npt.NDArray[np.int64], chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Hops to the farthest chip, by a breadth-first search from each of the chosen."""
    chips, ways = near.shape
    out = np.zeros(len(chosen), np.int64)
    queue = np.zeros(chips, np.int64)
    for i in range(len(chosen)):
        hops = np.full(chips, -1, np.int64)
        hops[chosen[i]] = 0
        queue[0] = chosen[i]
        head, tail = 0, 1
        while head < tail:
            chip = queue[head]
            head += 1
            for way in range(ways):
                there = near[chip, way]
                if there >= 0 and hops[there] < 0:
                    hops[there] = hops[chip] + 1
                    queue[tail] = there
                    tail += 1
        out[i] = hops[queue[tail - 1]]
    return out
