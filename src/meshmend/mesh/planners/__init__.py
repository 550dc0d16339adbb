"""From a mesh with a hole to the best all-reduce around it."""

from meshmend.base.registry import Registry
from meshmend.errors import PlanError
from meshmend.mesh.planners import ring, rowcol, rowpair, trees
from meshmend.mesh.planners.base import Planner as Planner
from meshmend.mesh.planners.bound import Bound as Bound
from meshmend.mesh.planners.bound import bound as bound
from meshmend.mesh.planners.cost import LINKS as LINKS
from meshmend.mesh.planners.cost import LinkSpeed as LinkSpeed
from meshmend.mesh.planners.cost import seconds as seconds
from meshmend.mesh.planners.plan import Flow as Flow
from meshmend.mesh.planners.plan import Plan as Plan
from meshmend.mesh.planners.roots import spread_roots as spread_roots

ALGORITHMS: Registry[Planner] = Registry(
    "algorithm",
    PlanError,
    {module.PLANNER.name: module.PLANNER for module in (trees, ring, rowpair, rowcol)},
)
"""Every planner by name. Of plans that are equally fast, `auto` takes the first in this order."""
