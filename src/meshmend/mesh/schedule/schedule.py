"""A plan cut into chunks and put on the clock: who sends which chunk over which link in which slot.

The payload is cut into equal chunks and each flow gets a whole number of them, as near to its share as rounding
allows; where roots are spread evenly, none gets more than its share rounded up. A slot is the time one chunk occupies
a link; a chunk sent in slot t can be sent on from slot `t + hop`, so `hop` is 1 plus the link's latency in slots.

Where links have different speeds, or the latency is no whole number of chunk times, a slot is shorter: a chunk occupies
a whole link for `pace` slots and a slower one for more, so that everything takes whole numbers of slots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from meshmend.errors import PlanError
from meshmend.mesh import Fabric
from meshmend.mesh.digest import digest_of, read_only
from meshmend.mesh.planners.cost import LinkSpeed, chunks_for, hop_slots, link_speed, pace_for, spread_over
from meshmend.mesh.planners.plan import Plan
from meshmend.mesh.schedule.scheduler import on_the_clock

Ints = npt.NDArray[np.int64]
COLUMNS = ("slot", "link", "chunk", "copy")
"""The table of a schedule: one row per transfer."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """Transfers in order of slots, as parallel arrays: in `slot`, `chunk` crosses `link` and is added or copied."""

    mesh: Fabric
    chunks: int
    hop: int
    """Slots from sending a chunk over a whole link until it can be sent on."""
    slot: npt.NDArray[np.int32] = field(repr=False)
    link: npt.NDArray[np.int32] = field(repr=False)
    """`link_number(chip, way)`: the chip that sends, and the way."""
    chunk: npt.NDArray[np.int32] = field(repr=False)
    copy: npt.NDArray[np.bool_] = field(repr=False)
    """True: the result replaces what the receiver has. False: the part is added to it."""
    pace: int = 0
    """Slots for which a chunk occupies a whole link; 0 where every link takes one slot, whatever its speed."""

    def __post_init__(self) -> None:
        for name in COLUMNS:
            object.__setattr__(self, name, read_only(getattr(self, name)))

    @cached_property
    def digest(self) -> bytes:
        """What names this schedule: equal for equal tables on equal meshes, and for no others."""
        head = f"{self.mesh.notation}|{self.chunks}|{self.hop}" + f"|{self.pace}" * (self.pace > 0)
        return digest_of(head, [getattr(self, name) for name in COLUMNS])

    def __len__(self) -> int:
        return len(self.slot)

    @cached_property
    def busy(self) -> Ints:
        """Slots for which a chunk occupies each directed link."""
        return busy_slots(self.mesh, self.pace)

    @property
    def arrive(self) -> Ints:
        """The slot from which on each transfer's chunk can be sent on."""
        return np.asarray(self.slot + (self.hop - max(1, self.pace) + self.busy[self.link]), np.int64)

    @cached_property
    def slots(self) -> int:
        """Slots until the last chunk has arrived."""
        return int(self.arrive.max()) if len(self) else 0

    @property
    def algbw(self) -> float:
        """Payload per time in units of B, filling and draining included."""
        return self.chunks * max(1, self.pace) / self.slots if len(self) else float("inf")

    @property
    def sender(self) -> npt.NDArray[np.int32]:
        """The chip each transfer leaves."""
        return np.asarray(self.mesh.link_source(self.link)[0])

    @property
    def receiver(self) -> npt.NDArray[np.int32]:
        """The chip each transfer reaches."""
        return np.asarray(self.mesh.neighbour.ravel()[self.link])

    def seconds(self, nbytes: float, link: str | LinkSpeed = "tpu-v3") -> float:
        """The time of one all-reduce of `nbytes` on links whose latency this schedule's `hop` covers."""
        speed = link_speed(link)
        needed = hop_slots(nbytes, self.chunks, speed, max(1, self.pace))
        if needed > self.hop:
            raise PlanError(
                f"{nbytes:.0f} bytes in {self.chunks} chunks need hop={needed} on this link, but the schedule has "
                f"hop={self.hop}: make it with schedule(nbytes=…, link=…)"
            )
        return self.slots * nbytes / self.chunks / max(1, self.pace) / speed.bandwidth


def schedule(
    plan: Plan,
    chunks: int | None = None,
    *,
    nbytes: float | None = None,
    link: str | LinkSpeed = "tpu-v3",
    hop: int | None = None,
    even: bool = False,
) -> Schedule:
    """Put a plan on the clock. `nbytes` and `link` set chunks and hop by rule; else some 2,048 chunks and no latency.

    `even` gives every link one slot per chunk, also slow ones: for executors that move in lockstep.
    """
    if nbytes is not None and not 0 < nbytes < math.inf:
        raise PlanError(f"nbytes={nbytes}: a payload has at least 1 byte")
    if chunks is None:
        chunks = _chunks_without_size(plan) if nbytes is None else chunks_for(plan, nbytes, link)
    for name, number in (("chunks", chunks), ("hop", hop)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, (int, np.integer))):
            raise PlanError(f"{name}={number!r}: give a whole number")
    if chunks < 1:
        raise PlanError(f"chunks={chunks}: a payload is cut into at least 1 chunk (better, several for each flow)")
    hop, pace = clock_for(plan.mesh, chunks, nbytes, link, hop, even=even)
    if hop * (plan.hops + 1) > np.iinfo(np.int32).max // 2:
        raise PlanError(f"hop={hop} over {plan.hops} hops makes more slots than can be counted: give fewer chunks")
    return timetable(plan, share_out(plan, chunks), hop, pace)


def clock_for(
    mesh: Fabric, chunks: int, nbytes: float | None, link: str | LinkSpeed, hop: int | None, *, even: bool
) -> tuple[int, int]:
    """(hop, pace) of a schedule whose chunks are 1 / `chunks` of a payload."""
    latency = 0.0
    if hop is None and nbytes is not None:
        speed = link_speed(link)
        latency = speed.latency * speed.bandwidth * chunks / nbytes
    pace = 0 if even else pace_for(mesh, latency)
    if pace == 1 and mesh.even:
        pace = 0
    if hop is None:
        hop = max(1, pace) if nbytes is None else hop_slots(nbytes, chunks, link, max(1, pace))
    elif pace and hop >= 1:
        hop *= pace
    if hop < 1:
        raise PlanError(f"hop={hop}: a chunk can be sent on in the next slot at the earliest, so hop is at least 1")
    return hop, pace


def timetable(plan: Plan, count: Ints, hop: int, pace: int) -> Schedule:
    """The table of all transfers, where each flow has so many chunks."""
    streams, timing = on_the_clock(plan, count, hop - max(1, pace), busy_slots(plan.mesh, pace))
    first_chunk = np.concatenate([[0], np.cumsum(streams.count)[:-1]])
    chunk_less_number = (first_chunk[streams.flow] - streams.first[:-1]).astype(np.int32)
    return Schedule(
        plan.mesh,
        int(count.sum()),
        hop,
        timing.slot,
        streams.link[timing.stream],
        timing.order + chunk_less_number[timing.stream],
        ~streams.is_up[timing.stream],
        pace,
    )


def busy_slots(mesh: Fabric, pace: int) -> Ints:
    """Slots for which a chunk occupies each directed link: never fewer than its speed asks for."""
    if not pace:
        return np.ones(mesh.link_numbers, np.int64)
    return np.where(mesh.units > 0, -(-pace * mesh.whole // np.maximum(mesh.units, 1)), pace)


def _chunks_without_size(plan: Plan) -> int:
    """Some 2,048; where roots are spread evenly, the same number for each."""
    roots = max(1, spread_over(plan))
    return -(-max(2048, len(plan)) // roots) * roots


def share_out(plan: Plan, chunks: int) -> Ints:
    """Whole chunks for each flow: the shares rounded down, then the rest to flows over the least loaded links.

    Where roots are spread evenly, no root gets more than its own share rounded up.
    """
    count = np.floor(plan.share * chunks + 1e-9).astype(np.int64)
    rest = chunks - int(count.sum())
    if rest == 0 or len(plan.mesh.live) == 1:
        count[0] += rest
        return count
    roots = spread_over(plan)
    room = np.full(plan.mesh.size, -(-chunks // roots) if roots else chunks)
    np.subtract.at(room, plan.root, count)
    use = _uses(plan)
    load = (count @ use).astype(np.float64) + 1
    open_flows = np.ones(len(plan), bool)
    while rest:
        flows = np.flatnonzero(open_flows & (room[plan.root] > 0))
        if not len(flows):
            open_flows[:] = True
            continue
        # A high power of the loads looks at the busiest links first and at all the others behind them.
        pressure = use[flows] @ ((load / load.max()) ** 64).astype(np.float32)
        best = flows[np.argsort(pressure, kind="stable")[: math.ceil(rest / 64)]]
        if roots:
            best = best[np.unique(plan.root[best], return_index=True)[1]]
        count[best] += 1
        load += use[best].sum(0)
        open_flows[best] = False
        room[plan.root[best]] -= 1
        rest -= len(best)
    return count


def _uses(plan: Plan) -> npt.NDArray[np.float32]:
    """[flow, directed link]: how often the flow crosses the link, over links in use."""
    use = np.zeros((len(plan), plan.mesh.link_numbers), np.float32)
    flow, chip = np.nonzero(plan.up >= 0)
    np.add.at(use, (flow, plan.mesh.link_number(chip, plan.up[flow, chip])), 1)
    flow, chip = np.nonzero(plan.down >= 0)
    np.add.at(use, (flow, plan.mesh.reverse[plan.mesh.link_number(chip, plan.down[flow, chip])]), 1)
    return use[:, use.any(0)]
