"""The verb of this folder: the best known plan for a mesh and a payload, and why it is that one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from meshmend.errors import PlanError
from meshmend.mesh import Mesh
from meshmend.plan.bound import bound
from meshmend.plan.cost import LinkSpeed, link_speed, seconds
from meshmend.plan.flow import Plan
from meshmend.plan.ring import ring
from meshmend.plan.rowcol import rowcol
from meshmend.plan.rowpair import rowpair
from meshmend.plan.trees import trees

ALGORITHMS: dict[str, Callable[[Mesh], Plan]] = {"trees": trees, "ring": ring, "rowpair": rowpair, "rowcol": rowcol}
FEW = (1, 3, 9)
"""Small payloads are all latency: one shallow tree, or a few."""
RESNET50 = 102e6
"""Bytes of ResNet-50's gradients in float32."""


def plan(mesh: Mesh | str, nbytes: float = RESNET50, algorithm: str = "auto", link: str | LinkSpeed = "tpu-v3") -> Plan:
    """Plan the all-reduce of `nbytes` round the hole; `auto` ranks what fits by predicted time."""
    if isinstance(mesh, str):
        mesh = Mesh.parse(mesh)
    if not 0 < nbytes < math.inf:
        raise PlanError(f"nbytes={nbytes}: a payload has at least 1 byte, and an end")
    speed = link_speed(link)
    mesh.require_connected()
    if algorithm in ALGORITHMS:
        return ALGORITHMS[algorithm](mesh).because("asked for by name")
    if algorithm != "auto":
        raise PlanError(f"no algorithm is called {algorithm!r}: choose from auto, {', '.join(ALGORITHMS)}")
    found: list[tuple[float, str, Plan]] = []
    for label, candidate in _candidates(mesh):
        # A plan whose busiest link or whose hops alone take longer than the best so far needs no closer look.
        time = max(nbytes * candidate.max_load / speed.bandwidth, candidate.hops * speed.latency)
        over = any(time >= other for other, _, _ in found)
        if not over:
            time = seconds(candidate, nbytes, speed)
        found.append((time, f"{label} {'over ' * over}{_time(time)}", candidate))
    found.sort(key=lambda item: item[0])
    times = ", ".join(text for _, text, _ in found)
    return found[0][2].because(f"predicted for {_size(nbytes)}: {times}")


def _candidates(mesh: Mesh) -> Iterator[tuple[str, Plan]]:
    for name, make in ALGORITHMS.items():
        try:
            yield name, make(mesh)
        except PlanError:
            continue  # this scheme does not exist on this mesh
    for flows in FEW if bound(mesh).value > 1 else ():
        yield f"{flows} tree{'s' * (flows > 1)}", trees(mesh, flows)


def _size(nbytes: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.4g} {unit}"
    return f"{nbytes:.4g} bytes"


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 0.9995:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
