"""What every planner is: a function from a mesh to a plan, with a name and with what it can do.

A new planner is one file with its function and a `PLANNER`, and its place in the list of `planners/__init__.py`.
Everything else asks for a capability: the command line for the names, a fleet for those that can route around a hole, a
step for one that works through a switch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshmend.errors import PlanError
from meshmend.mesh import Fabric, Mesh, on_grid
from meshmend.mesh.planners.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Planner:
    """One scheme of all-reduce."""

    name: str
    make: Callable[..., Plan]
    paper: str = ""
    """Where it was published, as an arXiv number; empty for our own."""
    dims: tuple[int, ...] = (2,)
    """Dimensions of the meshes that it can plan for."""
    graphs: bool = False
    """Whether it plans for graphs too, which have no rows and columns."""
    needs_intact: bool = False
    """Whether it exists only where nothing is dead."""
    through_switch: bool = False
    """Whether each chip has just two neighbours, so that a switch can join them in place of a mesh."""
    reach: Callable[[float], float] | None = None
    """The algbw of its plan around a hole, computed from the hole's bound alone; None where only a plan tells."""
    along_rows: Callable[[Mesh], Plan] | None = None
    """A variant that hardly loads the columns, so that several sums can share them; None where there is none."""

    def __call__(self, mesh: Fabric, **options: Any) -> Plan:
        """The plan for a mesh, or a `PlanError` if the scheme does not exist on it."""
        if self.graphs and not isinstance(mesh, Mesh):
            return self.make(mesh, **options)
        grid = on_grid(mesh, f"{self.name} needs", "use trees instead")
        if len(grid.dims) not in self.dims:
            known = " and ".join(map(str, self.dims))
            raise PlanError(
                f"{self.name} plans for meshes of {known} dimensions, and {mesh} has {len(grid.dims)}: "
                "use trees instead"
            )
        return self.make(grid, **options)
