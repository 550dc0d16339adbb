"""The one representation behind every algorithm: a plan is a weighted set of trees.

A **flow** is `(share, root, up, down)`: this share of the payload is reduced along the up tree to the root and
broadcast from it along the down tree. Trees are arrays over chips: `up[chip]` is the way (N E S W F B) in which a chip
sends its partial sum, `down[chip]` the way in which the chip lies that it gets the result from; -1 at the root and
at dead chips. A parent is always a neighbour: in an all-reduce over all chips, a route through a live chip may as
well add that chip's own part on its way, so relays would never help (groups do have them: `collectives/plan.py`).

    up   E E S W         a chip's letter is the way to its parent, `*` is the root
         E E * W

**load** of a directed link is the sum of the shares that cross it, up and down together, and `algbw` is
1 / max load, in units of one link's bandwidth B; on a slow link a load counts for as much more as the link is slower.
Where a scheme ends all reducing before it begins to broadcast (`overlap=False`, as published 2-D schemes do), the two
phases' loads add up instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshmend.base.kernels import kernel
from meshmend.mesh import Fabric, Mesh
from meshmend.mesh.digest import digest_of, read_only
from meshmend.mesh.grid import Chip
from meshmend.mesh.planners.bound import Bound, bound

if TYPE_CHECKING:
    from meshmend.mesh.schedule.schedule import Schedule

Ways = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float64]
COLUMNS = ("share", "root", "up", "down")
"""The arrays of a plan: one row per flow."""


@dataclass(frozen=True, eq=False)
class Flow:
    """One share of the payload and the two trees it takes."""

    share: float
    root: Chip
    up: Ways
    down: Ways


@dataclass(frozen=True, eq=False)
class Plan:
    """Flows whose shares add up to 1, on one mesh with one hole. Arrays hold one row per flow."""

    mesh: Fabric
    algorithm: str
    share: Floats
    root: npt.NDArray[np.int32]
    up: Ways
    down: Ways
    overlap: bool = True
    """Whether broadcasting may begin while other shares are still being reduced."""
    why: str = ""
    """Why this plan was chosen, in a sentence."""
    _bound: Bound | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in COLUMNS:
            object.__setattr__(self, name, read_only(getattr(self, name)))

    @cached_property
    def digest(self) -> bytes:
        """What names this plan: equal for equal flows on equal meshes, and for no others."""
        return digest_of(f"{self.mesh.notation}|{self.overlap}", [getattr(self, name) for name in COLUMNS])

    def __len__(self) -> int:
        return len(self.share)

    def __iter__(self) -> Iterator[Flow]:
        return iter(self.flows)

    @property
    def flows(self) -> tuple[Flow, ...]:
        """The flows one by one."""
        return tuple(
            Flow(float(s), self.mesh.chip(r), u, d)
            for s, r, u, d in zip(self.share, self.root, self.up, self.down, strict=True)
        )

    @cached_property
    def up_load(self) -> Floats:
        """Share that crosses each directed link (`link_number`) while reducing."""
        flow, chip = np.nonzero(self.up >= 0)
        return _sums(self.mesh.link_number(chip, self.up[flow, chip]), self.share[flow], self.mesh.link_numbers)

    @cached_property
    def down_load(self) -> Floats:
        """Share that crosses each directed link while broadcasting."""
        flow, chip = np.nonzero(self.down >= 0)
        link = self.mesh.reverse[self.mesh.link_number(chip, self.down[flow, chip])]
        return _sums(link, self.share[flow], self.mesh.link_numbers)

    @property
    def load(self) -> Floats:
        """Share that crosses each directed link in all."""
        return self.up_load + self.down_load

    @cached_property
    def max_load(self) -> float:
        """The time a unit payload takes on the busiest link, in payload / B."""
        if self.overlap:
            return float((self.load / self.mesh.speed).max())
        return float((self.up_load / self.mesh.speed).max() + (self.down_load / self.mesh.speed).max())

    @property
    def algbw(self) -> float:
        """Payload per second that large payloads reach, in units of a link's one-way bandwidth B."""
        return 1 / self.max_load if self.max_load else float("inf")

    @cached_property
    def bound(self) -> Bound:
        """The most that any plan could reach on this mesh, with its proof."""
        return self._bound if self._bound and self._bound.mesh == self.mesh else bound(self.mesh)

    @property
    def efficiency(self) -> float:
        """Algbw over the bound: 1.0 is the best that any plan can do."""
        return self.algbw / self.bound.value if self.bound.value < float("inf") else 1.0

    @cached_property
    def hops(self) -> int:
        """The longest way of a flow: from its farthest chip up to the root, and down to its farthest chip."""
        return int((depths(self.mesh, self.up).max(1) + depths(self.mesh, self.down).max(1)).max())

    @property
    def depth(self) -> int:
        """The most hops between a root and a chip."""
        return int(max(depths(self.mesh, self.up).max(), depths(self.mesh, self.down).max()))

    def because(self, why: str) -> Plan:
        """The same plan with another reason."""
        return replace(self, why=why)

    # What follows is convenience for users. It calls downwards, to what is made from plans, so the imports are inside.

    def schedule(self, chunks: int | None = None, **options: Any) -> Schedule:
        """The plan on the clock; see `meshmend.mesh.schedule.schedule.schedule`."""
        from meshmend.mesh.schedule.schedule import schedule

        return schedule(self, chunks, **options)

    def save(self, path: str) -> None:
        """Write the plan, as JSON or binary by the name's ending; `meshmend.load` reads it back."""
        from meshmend.mesh.files import save

        save(self, path)

    def __str__(self) -> str:
        from meshmend.mesh.drawing.text import describe

        return describe(self)

    def draw(self, path: str | None = None, *, flow: int = 0) -> str:
        """The plan as SVG text, also written to `path`; `flow` chooses the tree shown as arrows."""
        from meshmend.mesh.drawing.svg import draw

        return draw(self, path, flow=flow)

    def _repr_svg_(self) -> str | None:
        return self.draw() if isinstance(self.mesh, Mesh) else None  # a notebook then shows the text


def _sums(place: npt.NDArray[np.integer], value: Floats, size: int) -> Floats:
    return np.bincount(place, value, minlength=size).astype(np.float64)


def make_plan(
    mesh: Fabric,
    algorithm: str,
    share: npt.ArrayLike,
    up: npt.ArrayLike,
    down: npt.ArrayLike | None = None,
    *,
    overlap: bool = True,
) -> Plan:
    """A plan from trees as ways; shares are scaled to add up to 1 and roots are read off the up trees."""
    shares = np.asarray(share, np.float64)
    ups = np.ascontiguousarray(up, np.int8)
    downs = ups if down is None else np.ascontiguousarray(down, np.int8)
    roots = np.argmax((ups < 0) & mesh.alive, 1).astype(np.int32)
    return Plan(mesh, algorithm, shares / shares.sum(), roots, ups, downs, overlap)


def largest_share(plan: Plan) -> float:
    """The part of the payload of which the busiest root holds the sums before they are broadcast."""
    return float(np.bincount(plan.root, plan.share).max(initial=0.0))


def there_and_back(plan: Plan) -> bool:
    """Whether every flow broadcasts over the links that it reduces over, so that any chip could be its root."""
    return bool(np.array_equal(plan.up, plan.down))


def ways(mesh: Fabric, parent: npt.ArrayLike) -> Ways:
    """Trees given as parents' indices (-1 at roots and dead chips), turned into ways."""
    parents = np.atleast_2d(np.asarray(parent))
    out = np.full(parents.shape, -1, np.int8)
    for way in range(len(mesh.ways)):
        out[(parents >= 0) & (mesh.neighbour[:, way] == parents)] = way
    return out


def parents_of(mesh: Fabric, trees: Ways) -> npt.NDArray[np.int32]:
    """Trees given as ways, turned into parents' indices (-1 at roots and dead chips)."""
    chips = np.arange(mesh.size)
    return np.where(trees >= 0, mesh.neighbour[chips, np.maximum(trees, 0)], -1).astype(np.int32)


def depths(mesh: Fabric, trees: Ways) -> npt.NDArray[np.int32]:
    """Hops from each chip to its root (0 at roots and dead chips); a way that runs in a circle counts all chips."""
    return _depths(mesh.neighbour, trees)  # type: ignore[no-any-return]


@kernel
def _depths(neighbour: npt.NDArray[np.int32], trees: Ways) -> npt.NDArray[np.int32]:
    """Walk up from each chip to one whose depth is known, and count back down."""
    flows, chips = trees.shape
    depth = np.full((flows, chips), -1, np.int32)
    path = np.zeros(chips + 1, np.int64)
    for flow in range(flows):
        for chip in range(chips):
            at, steps = chip, 0
            while depth[flow, at] < 0 and trees[flow, at] >= 0 and steps < chips:
                path[steps] = at
                steps += 1
                at = neighbour[at, trees[flow, at]]
                if at < 0:  # a dead link: verify refuses the tree
                    at = chip
                    break
            hops = max(depth[flow, at], 0) if steps < chips else chips
            if trees[flow, at] < 0:
                depth[flow, at] = hops = 0
            for back in range(steps - 1, -1, -1):
                hops = min(hops + 1, chips)
                depth[flow, path[back]] = hops
    return depth


def heights(mesh: Fabric, trees: Ways) -> npt.NDArray[np.int32]:
    """Hops from each chip to the farthest one below it."""
    return _heights(parents_of(mesh, trees), depths(mesh, trees))  # type: ignore[no-any-return]


@kernel
def _heights(parent: npt.NDArray[np.int32], depth: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Chips of each tree from the deepest up, each telling its parent."""
    flows, chips = parent.shape
    height = np.zeros((flows, chips), np.int32)
    for flow in range(flows):
        begin = np.zeros(depth[flow].max() + 2, np.int64)
        for chip in range(chips):
            begin[depth[flow, chip] + 1] += 1
        begin = np.cumsum(begin)
        order = np.zeros(chips, np.int64)
        for chip in range(chips):
            order[begin[depth[flow, chip]]] = chip
            begin[depth[flow, chip]] += 1
        for i in range(chips - 1, -1, -1):
            chip = order[i]
            above = parent[flow, chip]
            if above >= 0:
                height[flow, above] = max(height[flow, above], height[flow, chip] + 1)
    return height
