"""A plan of any collective: the same weighted set of trees as `planners/plan.py`, where not every chip takes part.

A flow moves its share of one piece of data (`collective.py`): parts go **up** the tree and are added, the result goes
**down**. A collective that only reduces has no down trees, one that only spreads has no up trees. Which piece a flow
moves is told by its root: in `all_reduce` the piece of the root's group, else the root's own.

Trees of a group pass through chips of other groups. Such a chip is a **relay**: it has one child in the tree and
forwards what comes, and never adds. In `all_to_all` a tree is a bundle of paths: each chip below gets data of its own,
so that a link carries the share once for each chip below it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshmend.mesh import Fabric
from meshmend.mesh.collectives.bounds import CutBound
from meshmend.mesh.collectives.collective import ALL_REDUCE, COLLECTIVES, Collective
from meshmend.mesh.digest import digest_of, read_only
from meshmend.mesh.planners.plan import Plan, Ways, depths, parents_of

if TYPE_CHECKING:
    from meshmend.mesh.collectives.schedule import CollectiveSchedule

Floats = npt.NDArray[np.float64]
COLUMNS = ("group", "share", "root", "up", "down")


@dataclass(frozen=True, eq=False)
class CollectivePlan:
    """Flows of one collective on one mesh; arrays hold one row per flow."""

    mesh: Fabric
    collective: str
    group: npt.NDArray[np.int32]
    """The group of each chip; -1 for chips that are dead or only forward."""
    share: Floats
    """What a flow carries, as a part of one payload."""
    root: npt.NDArray[np.int32]
    up: Ways
    down: Ways
    cut: int
    """Chunks of a payload, at the least, that give every flow a whole number of them."""
    bound: CutBound = field(repr=False)
    """What no plan of this collective can exceed, with the cut that proves it."""
    why: str = ""

    def __post_init__(self) -> None:
        for name in COLUMNS:
            object.__setattr__(self, name, read_only(getattr(self, name)))

    def __len__(self) -> int:
        return len(self.share)

    @cached_property
    def digest(self) -> bytes:
        """What names this plan: equal for equal flows on equal meshes, and for no others."""
        return digest_of(f"{self.mesh.notation}|{self.collective}", [getattr(self, name) for name in COLUMNS])

    @property
    def kind(self) -> Collective:
        """What the collective does."""
        return COLLECTIVES[self.collective]

    @property
    def members(self) -> npt.NDArray[np.int32]:
        """The chips that take part."""
        return np.flatnonzero(self.group >= 0).astype(np.int32)

    @property
    def groups(self) -> int:
        """How many groups sum at once."""
        return int(self.group.max()) + 1

    @cached_property
    def below(self) -> npt.NDArray[np.int64]:
        """[flow, chip]: the pieces that reach a chip over its down link: its own and those for all chips below it."""
        return subtree_sizes(self.mesh, self.down) if self.kind.personal else (self.down >= 0).astype(np.int64)

    @cached_property
    def load(self) -> Floats:
        """The part of a payload that crosses each directed link (`link_number`)."""
        load = np.zeros(self.mesh.link_numbers)
        flow, chip = np.nonzero(self.up >= 0)
        np.add.at(load, self.mesh.link_number(chip, self.up[flow, chip]), self.share[flow])
        flow, chip = np.nonzero(self.down >= 0)
        link = self.mesh.reverse[self.mesh.link_number(chip, self.down[flow, chip])]
        np.add.at(load, link, self.share[flow] * self.below[flow, chip])
        return load

    @cached_property
    def max_load(self) -> float:
        """The time a unit payload takes on the busiest link, in payload / B."""
        return float((self.load / self.mesh.speed).max())

    @property
    def algbw(self) -> float:
        """Payload per second (of each group, if there are groups) that large payloads reach, in units of B."""
        return 1 / self.max_load if self.max_load else math.inf

    @property
    def efficiency(self) -> float:
        """Algbw over the bound. Below 1 a better plan may or may not exist where the bound is not known to be tight."""
        return self.algbw / self.bound.value if self.bound.value < math.inf else 1.0

    @cached_property
    def hops(self) -> int:
        """The longest way of a flow."""
        return int((depths(self.mesh, self.up).max(1) + depths(self.mesh, self.down).max(1)).max())

    @property
    def algorithm(self) -> str:
        """What pictures call it."""
        return self.collective if self.collective != ALL_REDUCE else f"{self.groups} groups"

    @property
    def depth(self) -> int:
        """The most hops between a root and a chip."""
        return int(max(depths(self.mesh, self.up).max(), depths(self.mesh, self.down).max()))

    @property
    def overlap(self) -> bool:
        """Flows never wait for others."""
        return True

    def because(self, why: str) -> CollectivePlan:
        """The same plan with another reason."""
        return replace(self, why=why)

    # What follows is convenience for users. It calls downwards, to what is made from plans, so the imports are inside.

    def schedule(self, chunks: int | None = None, **options: Any) -> CollectiveSchedule:
        """The plan on the clock; see `meshmend.mesh.collectives.schedule.schedule`."""
        from meshmend.mesh.collectives.schedule import schedule

        return schedule(self, chunks, **options)

    def save(self, path: str) -> None:
        """Write the plan, as JSON or binary by the name's ending; `meshmend.load` reads it back."""
        from meshmend.mesh.files import save

        save(self, path)

    def __str__(self) -> str:
        from meshmend.mesh.drawing.text import describe_collective

        return describe_collective(self)

    def draw(self, path: str | None = None, *, flow: int = 0) -> str:
        """The plan as SVG text, also written to `path`; `flow` chooses the tree shown as arrows."""
        from meshmend.mesh.drawing.svg import draw

        return draw(self, path, flow=flow)


def subtree_sizes(mesh: Fabric, trees: Ways) -> npt.NDArray[np.int64]:
    """[flow, chip]: chips of the subtree, the chip included; 0 at roots and at chips outside the tree."""
    parent, depth = parents_of(mesh, trees), depths(mesh, trees)
    sizes = (trees >= 0).astype(np.int64)
    for level in range(int(depth.max()), 1, -1):
        flow, chip = np.nonzero(depth == level)
        np.add.at(sizes, (flow, parent[flow, chip]), sizes[flow, chip])
    return sizes


def flows_as_plan(plan: CollectivePlan) -> Plan:
    """The flows as the scheduler takes them, with shares that add up to 1."""
    return Plan(plan.mesh, plan.collective, plan.share / plan.share.sum(), plan.root, plan.up, plan.down)
