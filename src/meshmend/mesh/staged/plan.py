"""A plan in stages: sums that many roots form side by side, from what the stage before has given them.

A flow of trees (`planners/plan.py`) has one root. All parts meet there and the result comes back, which takes twice the
mesh's radius. A torus has no middle: its radius is its diameter, and that is twice what is needed. In a **staged** flow
every chip that takes part in a stage may send to several roots at once:

    stage 1, along rows      each chip's part goes to every root of its row (every g-th chip), each over its own tree
    stage 2, along columns   each root of stage 1 does the same with its sum, in its column
    down                     the roots of the last stage hold the whole sum, and it spreads to their nearest chips

* A stage is a set of **layers**. A layer is a forest over the chips that take part in the stage: `way` of a chip, ROOT
  at the roots of its trees, ABSENT at chips that are not in it. All chips take part in the first stage, in each later
  one those that are roots in the one before; a chip is a root in one layer of a stage at most.
* The sum of a root in a stage is its value in the next. After the last stage every root must have every chip's part
  exactly once, which `proof/staged.py` shows by following the sets of parts.

A plan of trees is the special case of one stage with one layer that has one root.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshmend.base.units import plural
from meshmend.mesh import Mesh
from meshmend.mesh.digest import digest_of, read_only
from meshmend.mesh.grid import STEP
from meshmend.mesh.planners.bound import Bound, bound
from meshmend.mesh.planners.cost import FILL, MOST_CHUNKS, SMALLEST_CHUNK, LinkSpeed, link_speed
from meshmend.mesh.planners.plan import Ways, depths

if TYPE_CHECKING:
    from meshmend.mesh.staged.schedule import StagedSchedule

Floats = npt.NDArray[np.float64]
ROOT, ABSENT = -1, -2


@dataclass(frozen=True, eq=False)
class StagedFlow:
    """One share of the payload, the stages that sum it and the forest that spreads it."""

    share: float
    stages: tuple[Ways, ...]
    """[layer, chip] of each stage: the way in which the chip sends, ROOT or ABSENT."""
    down: Ways
    """The way in which the chip lies that each chip gets the result from; -1 at roots and dead chips."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(read_only(stage) for stage in self.stages))
        object.__setattr__(self, "down", read_only(self.down))


@dataclass(frozen=True, eq=False)
class StagedPlan:
    """Staged flows whose shares add up to 1."""

    mesh: Mesh
    flows: tuple[StagedFlow, ...]
    label: str = ""
    """What distinguishes it from other staged plans, such as the distances between roots."""
    why: str = ""
    """Why this plan was chosen, in a sentence."""
    _bound: Bound | None = field(default=None, repr=False)

    algorithm = "staged"

    @cached_property
    def digest(self) -> bytes:
        """What names this plan: equal for equal flows on equal meshes, and for no others."""
        arrays = [array for flow in self.flows for array in (*flow.stages, flow.down)]
        shares = np.array([flow.share for flow in self.flows])
        return digest_of(f"{self.mesh.notation}|staged|{[len(flow.stages) for flow in self.flows]}", [shares, *arrays])

    def __len__(self) -> int:
        return len(self.flows)

    def __iter__(self) -> Iterator[StagedFlow]:
        return iter(self.flows)

    @cached_property
    def legs(self) -> tuple[tuple[Ways, ...], ...]:
        """For each flow its stages and, in the same form, the way back: a leg for each axis, in reverse order."""
        out = []
        for flow in self.flows:
            axes = [{STEP[way][0] for way in np.unique(stage[stage >= 0]).tolist()} for stage in flow.stages]
            axis = np.array([STEP[way][0] for way in range(len(self.mesh.ways))])[np.maximum(flow.down, 0)]
            number = np.zeros(self.mesh.size, np.int64)
            for stage in range(len(axes) - 1, -1, -1):
                number[np.isin(axis, list(axes[stage]))] = stage
            back = [np.where(number == stage, flow.down, -1)[None] for stage in range(len(axes) - 1, -1, -1)]
            out.append((*flow.stages, *back))
        return tuple(out)

    @cached_property
    def loads(self) -> Floats:
        """[leg, directed link]: the part of the payload that crosses each link in each stage, and on the way back."""
        legs = max(map(len, self.legs))
        loads = np.zeros((legs, self.mesh.link_numbers))
        for flow, trees in zip(self.flows, self.legs, strict=True):
            for number, leg in enumerate(trees):
                _, chip = np.nonzero(leg >= 0)
                link = self.mesh.link_number(chip, leg[leg >= 0])
                link = link if number < len(flow.stages) else self.mesh.reverse[link]
                loads[number] += flow.share * np.bincount(link, minlength=loads.shape[1])
        return loads

    @cached_property
    def max_load(self) -> float:
        """The time a unit payload takes on the busiest link, in payload / B."""
        return float((self.loads.sum(0) / self.mesh.speed).max())

    @property
    def algbw(self) -> float:
        """Payload per second that large payloads reach, in units of a link's one-way bandwidth B."""
        return 1 / self.max_load if self.max_load else math.inf

    @cached_property
    def bound(self) -> Bound:
        """The most that any plan could reach on this mesh, with its proof."""
        return self._bound if self._bound and self._bound.mesh == self.mesh else bound(self.mesh)

    @property
    def efficiency(self) -> float:
        """Algbw over the bound: 1.0 is the best that any plan can do."""
        return self.algbw / self.bound.value if self.bound.value < math.inf else 1.0

    @cached_property
    def leg_hops(self) -> tuple[int, ...]:
        """Hops of the flow with the longest way, in each stage and in each leg of the way back."""
        each = [tuple(int(depths(self.mesh, leg).max()) for leg in trees) for trees in self.legs]
        return max(each, key=sum)

    @property
    def hops(self) -> int:
        """Hops from the first part that is sent to the last chip that gets the result."""
        return sum(self.leg_hops)

    @cached_property
    def roots(self) -> int:
        """The fewest chips that form the whole sum of a flow, each for itself and those near it."""
        return min(int((flow.stages[-1] == ROOT).sum()) for flow in self.flows)

    def because(self, why: str) -> StagedPlan:
        """The same plan with another reason."""
        return replace(self, why=why)

    # What follows is convenience for users. It calls downwards, to what is made from plans, so the imports are inside.

    def schedule(self, chunks: int | None = None, **options: Any) -> StagedSchedule:
        """The plan on the clock; see `meshmend.mesh.staged.schedule.schedule`."""
        from meshmend.mesh.staged.schedule import schedule

        return schedule(self, chunks, **options)

    def __str__(self) -> str:
        hops = " + ".join(str(hops) for hops in self.leg_hops if hops)
        lines = {
            "mesh": f"{self.mesh}, {plural(len(self.mesh.live), 'live chip')}",
            "plan": f"staged ({self.label}), {plural(len(self), 'flow')}, {hops} = {plural(self.hops, 'hop')}",
            "speed": f"{self.algbw:.3f} B of at most {self.bound.value:.3f} B ({100 * self.efficiency:.1f} %)",
            "load": f"the busiest link carries {self.max_load:.3f} of the payload",
            "roots": f"{plural(self.roots, 'chip')} or more form each sum, for themselves and those near them",
            "why": self.why,
        }
        return "\n".join(f"{name:<6} {text}" for name, text in lines.items() if text)


MOST_TRANSFERS = 8_000_000
"""Of a schedule: more chunks would save a percent, and take many seconds to put on the clock."""


def chunks_for(plan: StagedPlan, nbytes: float, link: str | LinkSpeed = "tpu-v3") -> int:
    """Enough chunks that passing one from hop to hop costs little beside its latency, and equally many in each flow."""
    speed = link_speed(link)
    payload = nbytes / speed.bandwidth
    whole = max(_stage_sum(plan, payload, speed.latency, 0.0), 1e-30)
    each = sum(int((stage >= 0).sum()) for stage in (*plan.flows[0].stages, plan.flows[0].down))
    most = max(len(plan), min(MOST_CHUNKS, MOST_TRANSFERS // max(1, each), int(nbytes // SMALLEST_CHUNK)))
    wanted = max(1, math.ceil(payload * plan.hops / (FILL * whole)))
    return max(1, min(-(-wanted // len(plan)), most // len(plan))) * len(plan)


def seconds(plan: StagedPlan, nbytes: float, link: str | LinkSpeed = "tpu-v3", chunks: int | None = None) -> float:
    """The predicted time of one all-reduce (a schedule gives it exactly, slot by slot).

    In a leg, either the way is long or the links are busy: while a chunk travels on, its link carries others.
    """
    speed = link_speed(link)
    payload = nbytes / speed.bandwidth
    return _stage_sum(plan, payload, speed.latency, payload / (chunks or chunks_for(plan, nbytes, link)))


def _stage_sum(plan: StagedPlan, payload: float, latency: float, chunk: float) -> float:
    hop = latency + chunk
    way = np.array(plan.leg_hops) * hop
    busy = payload * (plan.loads / plan.mesh.speed).max(1)
    full = float(np.minimum(busy / np.maximum(way, 1e-30), 1)[way > 0].max(initial=0.0))
    # The fuller the links are, the more likely the last chunk waits for one; it arrives about a hop later then.
    return float(np.maximum(way, busy).sum() + hop * full**2)
