"""A plan of any collective on the clock: the same table of transfers, and for each chunk whose it is.

Chunks are equal parts of a payload, and every flow gets a whole number of them. An `all_to_all` has chunks of its own
for every pair of chips: a path of the sender's tree is a flow by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from meshmend.errors import PlanError
from meshmend.mesh import Fabric
from meshmend.mesh.collectives.collective import COLLECTIVES, Collective
from meshmend.mesh.collectives.plan import CollectivePlan, flows_as_plan
from meshmend.mesh.digest import digest_of, read_only
from meshmend.mesh.planners.cost import FILL, MOST_CHUNKS, SMALLEST_CHUNK, LinkSpeed, hop_slots, link_speed
from meshmend.mesh.planners.plan import Plan, parents_of
from meshmend.mesh.schedule.schedule import Schedule, clock_for, timetable

Places = npt.NDArray[np.int32]
COLUMNS = ("group", "owner", "to")
MOST_PATHS = 2**25
"""Bytes that the paths of an all_to_all may take on the clock: that of 256 chips fits."""


@dataclass(frozen=True, eq=False)
class CollectiveSchedule:
    """Who sends which chunk over which link in which slot, and what each chunk is."""

    collective: str
    group: Places
    """The group of each chip; -1 for chips that are dead or only forward."""
    cut: int
    """Chunks of one payload: a chunk has 1 / cut of its bytes."""
    owner: Places = field(repr=False)
    """The piece that each chunk belongs to: of this group, or of this chip."""
    to: Places = field(repr=False)
    """The only chip that gets the chunk, in an all_to_all; else -1."""
    table: Schedule = field(repr=False)
    """The transfers."""

    def __post_init__(self) -> None:
        for name in COLUMNS:
            object.__setattr__(self, name, read_only(getattr(self, name)))

    @property
    def mesh(self) -> Fabric:
        """Where it runs."""
        return self.table.mesh

    @property
    def kind(self) -> Collective:
        """What the collective does."""
        return COLLECTIVES[self.collective]

    @cached_property
    def digest(self) -> bytes:
        """What names this schedule: equal for equal tables on equal meshes, and for no others."""
        head = f"{self.collective}|{self.cut}|{self.table.digest.hex()}"
        return digest_of(head, [getattr(self, name) for name in COLUMNS])

    def __len__(self) -> int:
        return len(self.table)

    @property
    def slots(self) -> int:
        """Slots until the last chunk has arrived."""
        return self.table.slots

    @property
    def algbw(self) -> float:
        """Payload per time in units of B, filling and draining included."""
        return self.cut * max(1, self.table.pace) / self.slots if len(self) else math.inf

    def seconds(self, nbytes: float, link: str | LinkSpeed = "tpu-v3") -> float:
        """The time of one payload of `nbytes` (in every group) on links whose latency this schedule covers."""
        speed, pace = link_speed(link), max(1, self.table.pace)
        needed = hop_slots(nbytes, self.cut, speed, pace)
        if needed > self.table.hop:
            raise PlanError(
                f"{nbytes:.0f} bytes in {self.cut} chunks need hop={needed} on this link, but the schedule has "
                f"hop={self.table.hop}: make it with schedule(nbytes=…, link=…)"
            )
        return self.slots * nbytes / self.cut / pace / speed.bandwidth


def schedule(
    plan: CollectivePlan,
    chunks: int | None = None,
    *,
    nbytes: float | None = None,
    link: str | LinkSpeed = "tpu-v3",
    hop: int | None = None,
    even: bool = False,
) -> CollectiveSchedule:
    """Put a plan on the clock, each payload cut into about `chunks` (rounded up so that flows get whole numbers)."""
    if nbytes is not None and not 0 < nbytes < math.inf:
        raise PlanError(f"nbytes={nbytes}: a payload has at least 1 byte")
    if chunks is not None and (isinstance(chunks, bool) or not isinstance(chunks, (int, np.integer)) or chunks < 1):
        raise PlanError(f"chunks={chunks!r}: give a whole number of at least 1")
    if chunks is None:
        chunks = plan.cut if nbytes is None else chunks_for(plan, nbytes, link)
    cut = -(-chunks // plan.cut) * plan.cut
    hop, pace = clock_for(plan.mesh, cut, nbytes, link, hop, even=even)
    flows, to = _paths(plan) if plan.kind.personal else (flows_as_plan(plan), np.full(len(plan), -1, np.int32))
    share = np.full(len(flows), plan.share.min()) if plan.kind.personal else plan.share
    count = np.round(share * cut).astype(np.int64)
    owner = flows.root if plan.kind.per_chip or plan.kind.rooted else plan.group[flows.root]
    return CollectiveSchedule(
        plan.collective, plan.group, cut, np.repeat(owner, count), np.repeat(to, count),
        timetable(flows, count, hop, pace),
    )  # fmt: skip


def chunks_for(plan: CollectivePlan, nbytes: float, link: str | LinkSpeed) -> int:
    """Enough chunks that passing one from hop to hop costs little of the whole time, beside latency."""
    speed = link_speed(link)
    payload = nbytes / speed.bandwidth
    whole = max(payload * plan.max_load + plan.hops * speed.latency, 1e-30)
    wanted = math.ceil(payload * plan.hops / (FILL * whole))
    return max(1, min(wanted, MOST_CHUNKS, int(nbytes // SMALLEST_CHUNK)))


def _paths(plan: CollectivePlan) -> tuple[Plan, Places]:
    """A flow for each path of each tree, and the chip at its end."""
    flow, to = np.nonzero(plan.down >= 0)
    if len(flow) * plan.mesh.size > MOST_PATHS:
        raise PlanError(
            f"the {len(flow):,} paths of an all_to_all on {plan.mesh} are too many to schedule, which works up to "
            "about 256 chips: use the plan's own loads, or a smaller mesh"
        )
    down = np.full((len(flow), plan.mesh.size), -1, np.int8)
    every, parent = np.arange(len(flow)), parents_of(plan.mesh, plan.down)
    chip = to.copy()
    while (way := plan.down[flow, chip]).max(initial=-1) >= 0:
        on = way >= 0
        down[every[on], chip[on]] = way[on]
        chip = np.where(on, parent[flow, chip], chip)
    none = np.full(down.shape, -1, np.int8)
    share = np.full(len(flow), 1 / max(1, len(flow)))
    return Plan(plan.mesh, plan.collective, share, plan.root[flow], none, down), to.astype(np.int32)
