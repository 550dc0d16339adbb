"""The planner of each collective, and what it needs to be told."""

from __future__ import annotations

from collections.abc import Callable

from meshmend.errors import PlanError
from meshmend.mesh import Fabric, on_grid
from meshmend.mesh.collectives.all_gather import plan_all_gather, plan_reduce_scatter
from meshmend.mesh.collectives.all_to_all import plan_all_to_all
from meshmend.mesh.collectives.broadcast import plan_broadcast
from meshmend.mesh.collectives.collective import ALL_REDUCE, COLLECTIVES
from meshmend.mesh.collectives.group_sums import plan_groups
from meshmend.mesh.collectives.groups import Tile
from meshmend.mesh.collectives.plan import CollectivePlan
from meshmend.mesh.collectives.slow_links import around_slow_links
from meshmend.mesh.grid import Chip
from meshmend.mesh.planners.trees import shallowest

PLANNERS: dict[str, Callable[[Fabric], CollectivePlan]] = {
    "reduce_scatter": plan_reduce_scatter,
    "all_gather": plan_all_gather,
    "all_to_all": plan_all_to_all,
}

MOST_CHIPS = 4096
"""Of collectives with trees for every chip: tables grow as the square of it."""


def plan_collective(
    mesh: Fabric, collective: str, groups: Tile | None = None, root: Chip | None = None
) -> CollectivePlan:
    """Plan any collective but an all-reduce over all chips, which has planners of its own."""
    kind = COLLECTIVES.find(collective)
    if groups is not None and not isinstance(groups, Tile):
        raise PlanError(f"groups={groups!r}: give the tile whose positions sum apart, as in groups=mm.tile(2, 2)")
    if groups is not None and collective != ALL_REDUCE:
        raise PlanError(f"{collective} is planned for all live chips, not in groups: leave groups or collective out")
    if root is not None and not kind.rooted:
        given = ",".join(map(str, root))
        raise PlanError(f"{collective} has no root to choose: leave --root out (given: {given})")
    if groups is not None:
        grid = on_grid(mesh, "groups of peers need", "plan a sum of all chips")
        made = around_slow_links(grid, lambda mesh: plan_groups(mesh, groups))
        out = len(mesh.live) - len(made.members)
        peers = len(made.members) // made.groups
        forward = f", and {out} live chips of broken tiles only forward" if out else ""
        return made.because(f"tiles of {groups}: {made.groups} groups of {peers} peers sum at once{forward}")
    if not kind.rooted:
        if len(mesh.live) > MOST_CHIPS:
            raise PlanError(
                f"{collective} needs trees for each of {len(mesh.live):,} chips, but at most {MOST_CHIPS:,} are "
                "supported: use a part of the mesh"
            )
        return around_slow_links(mesh, PLANNERS[collective]).because(kind.does)
    if root is None:
        index = int(mesh.live[(shallowest(mesh)[0, mesh.live] < 0).argmax()])
    else:
        index = mesh.index(tuple(root))
        if not mesh.alive[index]:
            raise PlanError(f"the root {mesh.name(index)} is dead: give a live chip, or leave root out")
    made = around_slow_links(mesh, lambda mesh: plan_broadcast(mesh, index))
    return made.because(f"{kind.does}, which is chip {mesh.name(index)}")
