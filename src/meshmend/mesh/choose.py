"""The public verb `plan`: the best known plan for a mesh and a payload, and why it is that one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple, overload

from meshmend.base.units import duration_text, plural, size_text
from meshmend.errors import PlanError
from meshmend.mesh import Fabric, on_grid, read_mesh
from meshmend.mesh.collectives import ALL_REDUCE, CollectivePlan, Tile, plan_collective
from meshmend.mesh.collectives.all_gather import reduce_then_gather
from meshmend.mesh.grid import Chip
from meshmend.mesh.planners import ALGORITHMS
from meshmend.mesh.planners.bound import bound
from meshmend.mesh.planners.cost import LinkSpeed, chunks_for, least_seconds, link_speed, seconds
from meshmend.mesh.planners.plan import Plan
from meshmend.mesh.planners.trees import SMALL, trees
from meshmend.mesh.schedule.schedule import schedule
from meshmend.mesh.staged import StagedPlan, best_staged
from meshmend.mesh.staged.plan import seconds as staged_seconds

AUTO = "auto"
"""The fastest predicted for the payload."""
FEW = (1, 3, 9)
"""Small payloads are all latency: one shallow tree, or a few."""
CLOSE = 1.5
EQUAL = 1.01
"""Plans whose times differ by less are equally fast."""
FEW_TRANSFERS = 600_000
"""Candidates predicted within this factor of the best are put on the clock, where that takes a fraction of a second."""
RESNET50 = 102e6
"""Bytes of ResNet-50's gradients in float32."""


@overload
def plan(
    mesh: Fabric | str,
    nbytes: float = RESNET50,
    algorithm: str = AUTO,
    link: str | LinkSpeed = "tpu-v3",
    *,
    staged: Literal[False] = False,
) -> Plan: ...


@overload
def plan(
    mesh: Fabric | str, nbytes: float = RESNET50, *, link: str | LinkSpeed = "tpu-v3", staged: Literal[True]
) -> Plan | StagedPlan: ...


@overload
def plan(mesh: Fabric | str, *, groups: Tile) -> CollectivePlan: ...


@overload
def plan(mesh: Fabric | str, *, collective: str, root: Chip | None = None) -> CollectivePlan: ...


def plan(
    mesh: Fabric | str,
    nbytes: float = RESNET50,
    algorithm: str = AUTO,
    link: str | LinkSpeed = "tpu-v3",
    *,
    collective: str = ALL_REDUCE,
    groups: Tile | None = None,
    root: Chip | None = None,
    staged: bool = False,
) -> Plan | CollectivePlan | StagedPlan:
    """Plan the all-reduce of `nbytes` around the hole; `auto` ranks the schemes that exist here by predicted time.

    `groups=mm.tile(2, 2)` plans the sums of all groups of peers at once; `collective` another collective than
    "all_reduce" (a broadcast from `root`). Those have one scheme each, and no payload to choose by.
    `staged` also allows a plan in stages, with many roots: on tori up to twice as fast for payloads of up to some
    megabytes. It can be proved, simulated, saved, and run in numpy and on MPI ranks; other executors and exports take
    trees.
    """
    if isinstance(mesh, str):
        mesh = read_mesh(mesh)
    if not 0 < nbytes < math.inf:
        raise PlanError(f"nbytes={nbytes}: a payload has at least 1 byte and is finite")
    speed = link_speed(link)
    mesh.require_connected()
    if collective != ALL_REDUCE or groups is not None or root is not None:
        if algorithm != AUTO or staged:
            given = f"algorithm={algorithm!r}" if algorithm != AUTO else "staged=True"
            raise PlanError(f"{given} supports only all-reduces over all chips; omit it for other collectives")
        return plan_collective(mesh, collective, groups, root)
    if algorithm != AUTO:
        if staged:
            raise PlanError(
                f"staged=True and algorithm={algorithm!r}: stages are among auto's choices, so give only one of them"
            )
        return ALGORITHMS.find(algorithm, also=(AUTO,))(mesh).because("asked for by name")
    found: list[Found] = []
    for label, candidate in _candidates(mesh):
        # A plan whose busiest link or whose hops alone take longer than the best so far needs no closer look.
        time = least_seconds(candidate, nbytes, speed)
        over = any(EQUAL * time >= other.time for other in found)
        found.append(Found(label, candidate, time if over else seconds(candidate, nbytes, speed), over))
    limit = CLOSE * min(other.time for other in found)
    found = [_on_the_clock(other, nbytes, speed) if other.time <= limit else other for other in found]
    # Those that are equal are taken in the order of the list of algorithms.
    least = min(other.time for other in found)
    best = next(other for other in found if other.time <= EQUAL * least)
    found.sort(key=lambda other: (other is not best, other.time))
    times = ", ".join(f"{other.label} {'over ' * other.over}{duration_text(other.time)}" for other in found)
    in_stages = best_staged(on_grid(mesh, "staged=True needs", "leave it out"), nbytes, speed) if staged else None
    if in_stages is not None:
        time = staged_seconds(in_stages, nbytes, speed)
        if EQUAL * time < best.time:
            return in_stages.because(f"predicted for {size_text(nbytes)}: staged {duration_text(time)}, {times}")
        times += f", staged {duration_text(time)}"
    return best.plan.because(f"predicted for {size_text(nbytes)}: {times}")


class Found(NamedTuple):
    """A candidate and its predicted time."""

    label: str
    plan: Plan
    time: float
    over: bool
    """Whether the time is only a lower bound."""


def _on_the_clock(found: Found, nbytes: float, speed: LinkSpeed) -> Found:
    """Small payloads are close calls, and small schedules are quickly made: then the clock decides."""
    chunks = chunks_for(found.plan, nbytes, speed)
    # Schemes with a flow for every chip cost that much to prepare however few their chunks are.
    if max(chunks, len(found.plan)) * 2 * len(found.plan.mesh.live) > FEW_TRANSFERS:
        return found
    exact = schedule(found.plan, chunks, nbytes=nbytes, link=speed).seconds(nbytes, speed)
    return found._replace(time=exact, over=False)


def _candidates(mesh: Fabric) -> Iterator[tuple[str, Plan]]:
    for name, planner in ALGORITHMS.items():
        try:
            yield name, planner(mesh)
        except PlanError:
            continue  # this scheme does not exist on this mesh
    for flows in FEW if bound(mesh).value > 1 else ():
        yield plural(flows, "tree"), trees(mesh, flows)
    if 1 < len(mesh.live) <= SMALL:  # a tree for each chip: on large meshes that takes longer to plan than it can win
        yield "scatter", reduce_then_gather(mesh)
