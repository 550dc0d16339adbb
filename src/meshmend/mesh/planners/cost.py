"""What a link can do, and what a plan will take on it: the figures that plans are ranked by.

A chunk occupies a link for its size / bandwidth (a slow one for longer); it is there one latency later, while the link
already carries the next. A link works for `S * load / B` in all; it waits until the first chunk can have reached it,
and its last chunk has hops left to travel, each `S / (K * B) + latency` in a payload S of K chunks. The last link to
end gives the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from meshmend.base.registry import Registry
from meshmend.errors import PlanError
from meshmend.mesh import Fabric
from meshmend.mesh.planners.bound import live_neighbours
from meshmend.mesh.planners.packing import grow
from meshmend.mesh.planners.plan import Plan, depths, heights, there_and_back

MOST_CHUNKS = 4096
SMALLEST_CHUNK = 1024
"""Bytes: below that, what each message costs by itself outweighs its transfer on real links."""
FILL = 0.015
"""The part of the whole time that chunks may take to pass from hop to hop, beside their latency."""
DRAIN = 1.08
"""Of the mesh's diameter: fitted to simulated schedules of small meshes in two and three dimensions."""
SAMPLE = 16
"""Chips and flows that a first look at a plan takes."""
MOST_PACE = 12
"""Slots for a whole link, at most: speeds that would need more are rounded down by less than a tenth."""


@dataclass(frozen=True)
class LinkSpeed:
    """One link, each way."""

    bandwidth: float
    """Bytes per second."""
    latency: float
    """Seconds per hop."""

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth < math.inf or not 0 <= self.latency < math.inf:
            raise PlanError(
                f"a link of {self.bandwidth} bytes/s and {self.latency} s: the bandwidth must be positive, "
                "the latency not negative, and both finite"
            )


# Nobody publishes latencies: 1 µs is what MLPerf's logs of TPU-v3 fit, and taken for its successors too.
LINKS: Registry[LinkSpeed] = Registry(
    "link",
    PlanError,
    {
        "tpu-v3": LinkSpeed(80e9, 1e-6),
        "tpu-v4": LinkSpeed(50e9, 1e-6),  # arXiv 2304.01433: six links of 50 GB/s
        "tpu-v5p": LinkSpeed(100e9, 1e-6),  # cloud.google.com/tpu/docs/v5p: 1,200 GB/s per chip, both ways, six links
        "tpu-v6e": LinkSpeed(100e9, 1e-6),  # …/v6e: 800 GB/s per chip, both ways, four links
        "tpu7x": LinkSpeed(100e9, 1e-6),  # …/tpu7x: 1,200 GB/s per chip, both ways, six links
        "trn2": LinkSpeed(128e9, 1e-6),  # deduced, see presets.py
        "wormhole": LinkSpeed(50e9, 1e-6),  # four Ethernet lanes of 100 Gbit/s per direction
        "ethernet-100g": LinkSpeed(12.5e9, 5e-6),
        "ethernet-10g": LinkSpeed(1.25e9, 20e-6),
    },
)


def link_speed(link: str | LinkSpeed) -> LinkSpeed:
    """A link by name, or as it is."""
    return link if isinstance(link, LinkSpeed) else LINKS.find(link, instead="a LinkSpeed")


def chunks_for(plan: Plan, nbytes: float, link: str | LinkSpeed = "tpu-v3") -> int:
    """How many chunks: enough that filling costs little, and if possible the same number for equal flows or roots.

    More bytes never get fewer chunks, so that the time grows with the payload without jumps.
    """
    speed = link_speed(link)
    most = max(1, min(MOST_CHUNKS, int(nbytes // SMALLEST_CHUNK)))
    payload = nbytes / speed.bandwidth
    whole = max(payload * plan.max_load + plan.hops * speed.latency, 1e-30)
    wanted = max(len(plan), math.ceil(payload * plan.hops / (FILL * whole)))
    for even in (whole_shares(plan), spread_over(plan)):
        if 0 < even <= most:
            return min(-(-wanted // even) * even, most // even * even)
    return min(most, wanted)


def whole_shares(plan: Plan) -> int:
    """The least number of chunks that gives each flow exactly its share; 0 if that is more than there may be."""
    least = 1 / float(plan.share.min())
    number = round(least)
    exact = number <= MOST_CHUNKS and np.allclose(plan.share * number, np.round(plan.share * number), atol=1e-6)
    return number if exact else 0


def spread_over(plan: Plan) -> int:
    """Over how many roots a plan of trees is spread evenly (`roots.py`); 0 if one root holds more than another."""
    if not there_and_back(plan):
        return 0
    held = np.bincount(plan.root, plan.share)
    held = held[held > 0]
    return len(held) if np.allclose(held, held[0], rtol=1e-6, atol=0) else 0


def pace_for(mesh: Fabric, latency: float) -> int:
    """Slots for which a chunk occupies a whole link, so that all links and the latency take whole numbers of slots.

    `latency` is in chunk times. Where exact numbers would be large, nearly.
    """
    speeds = np.unique(mesh.units[mesh.directed_links])
    least = math.lcm(*(int(units) // math.gcd(mesh.whole, int(units)) for units in speeds))
    if least > MOST_PACE:
        return MOST_PACE
    paces = range(least, MOST_PACE + 1, least)
    rounded = {pace: 1 + math.ceil(pace * latency - 1e-9) / pace for pace in paces}
    return next(pace for pace in paces if rounded[pace] <= 1.02 * min(rounded.values()))


def hop_slots(nbytes: float, chunks: int, link: str | LinkSpeed, pace: int = 1) -> int:
    """Slots, of which a chunk takes `pace`, from the one in which it is sent to the first in which it goes on."""
    speed = link_speed(link)
    return pace + math.ceil(pace * speed.latency * speed.bandwidth * chunks / nbytes - 1e-9)


def seconds(plan: Plan, nbytes: float, link: str | LinkSpeed = "tpu-v3") -> float:
    """The predicted time of one all-reduce (a schedule gives it exactly, slot by slot)."""
    speed = link_speed(link)
    hop = nbytes / chunks_for(plan, nbytes, link) / speed.bandwidth + speed.latency
    payload = nbytes / speed.bandwidth
    if plan not in _PROFILES:
        _PROFILES[plan] = list(_phases(plan))
    return sum(
        max(
            phase.hops * hop,
            _most(payload * phase.load + hop * phase.wait),
            _most(payload * plan.share + hop * phase.flow_hops),
            payload * _most(phase.load) + hop * phase.drain * _fade(plan.mesh, payload * _most(phase.load), phase, hop),
        )
        for phase in _PROFILES[plan]
    )


def _fade(mesh: Fabric, busy: float, phase: _Phase, hop: float) -> float:
    """The part of the drain that is left: on tori, where roots lie all over, large payloads hide it."""
    if not mesh.rimless or not phase.drain:
        return 1.0
    across = busy / (phase.drain / DRAIN * hop)
    return min(1.0, max(0.15, 1 - (across - 1.4) / 3.2))


def least_seconds(plan: Plan, nbytes: float, link: str | LinkSpeed = "tpu-v3") -> float:
    """What a plan takes at least, found at a glance: enough to tell that it cannot be the fastest."""
    speed = link_speed(link)
    payload = nbytes / speed.bandwidth
    hop = payload / max(1, min(MOST_CHUNKS, int(nbytes // SMALLEST_CHUNK))) + speed.latency
    return sum(max(payload * load, hops * hop) for load, hops in _glance(plan))


def _glance(plan: Plan) -> tuple[tuple[float, int], ...]:
    """(load, hops) of each phase, at the least: those of a few links and flows, where tables are large."""
    chips = plan.mesh.live[:: max(1, len(plan.mesh.live) // SAMPLE)]
    flows = slice(None, None, max(1, len(plan) // SAMPLE))
    loads = np.zeros((2, len(chips), len(plan.mesh.ways)))
    for way in range(len(plan.mesh.ways)):
        there = plan.mesh.neighbour[chips, way]
        home = plan.mesh.link_source(plan.mesh.reverse[plan.mesh.link_number(chips, way)])[1]
        loads[0, :, way] = plan.share @ (plan.up[:, chips] == way)
        loads[1, :, way] = np.where(there >= 0, plan.share @ (plan.down[:, there] == home), 0)
    loads /= plan.mesh.speed.reshape(plan.mesh.size, -1)[chips]
    hops = [depths(plan.mesh, trees[flows]).max(1) for trees in (plan.up, plan.down)]
    if plan.overlap:
        return ((float(loads.sum(0).max()), int((hops[0] + hops[1]).max())),)
    return tuple((float(load.max()), int(hop.max())) for load, hop in zip(loads, hops, strict=True))


class _Phase(NamedTuple):
    """What does not depend on the payload: for each link in use, what it carries and the hops before and after."""

    load: npt.NDArray[np.float64]
    wait: npt.NDArray[np.float64]
    flow_hops: npt.NDArray[np.float64]
    """The longest way of each flow: its first chunk takes it all, and the others follow one by one."""
    drain: float
    """Hops for which the busiest links lack work, as measured on schedules."""

    @property
    def hops(self) -> float:
        """The longest way of any flow."""
        return _most(self.flow_hops)


_PROFILES: WeakKeyDictionary[Plan, list[_Phase]] = WeakKeyDictionary()


def _phases(plan: Plan) -> Iterator[_Phase]:
    """One phase, or where all reducing ends before broadcasting begins, two."""
    up, down = _crossings(plan)
    if plan.overlap or not len(up.link):
        flow_hops = (depths(plan.mesh, plan.up).max(1) + depths(plan.mesh, plan.down).max(1)).astype(np.float64)
        # In the beginning there is nothing to broadcast, and in the end nothing to reduce: where links serve both, they
        # lack work for about as long as it takes across the mesh. Rings have work everywhere all the time.
        both_ways = len(up.link) > 0 and there_and_back(plan)
        yield _phase(plan, [up, down], flow_hops, DRAIN * diameter(plan.mesh) if both_ways else 0.0)
        return
    up_hops, down_hops = int(up.head.max()) + 1, int(down.tail.max()) + 1
    yield _phase(plan, [up._replace(tail=up.tail - down_hops)], np.full(len(plan), float(up_hops)), 0.0)
    yield _phase(plan, [down._replace(head=down.head - up_hops)], np.full(len(plan), float(down_hops)), 0.0)


class _Crossings(NamedTuple):
    """One entry for each link of each tree: the share that crosses it, the hops before it and after it."""

    link: npt.NDArray[np.integer[Any]]
    share: npt.NDArray[np.float64]
    head: npt.NDArray[np.int32]
    tail: npt.NDArray[np.int32]


def _crossings(plan: Plan) -> tuple[_Crossings, _Crossings]:
    mesh, every = plan.mesh, np.arange(len(plan))
    up_depth, down_depth = depths(mesh, plan.up), depths(mesh, plan.down)
    up_height, down_height = heights(mesh, plan.up), heights(mesh, plan.down)
    to_root, from_root = up_height[every, plan.root], down_height[every, plan.root]
    flow, chip = np.nonzero(plan.up >= 0)
    up = _Crossings(
        mesh.link_number(chip, plan.up[flow, chip]),
        plan.share[flow],
        up_height[flow, chip],
        up_depth[flow, chip] - 1 + from_root[flow],
    )
    flow, chip = np.nonzero(plan.down >= 0)
    down = _Crossings(
        mesh.reverse[mesh.link_number(chip, plan.down[flow, chip])],
        plan.share[flow],
        to_root[flow] + down_depth[flow, chip] - 1,
        down_height[flow, chip],
    )
    return up, down


def _phase(plan: Plan, crossings: list[_Crossings], flow_hops: npt.NDArray[np.float64], drain: float) -> _Phase:
    """A link waits for the first chunk to reach it, works, and its last chunk travels on."""
    link, share, head, tail = (np.concatenate(column) for column in zip(*crossings, strict=True))
    links = plan.mesh.link_numbers
    load = np.bincount(link, share, minlength=links) / plan.mesh.speed
    wait = np.full((2, links), np.iinfo(np.int64).max)
    np.minimum.at(wait[0], link, head)
    np.minimum.at(wait[1], link, tail)
    used = load > 0
    return _Phase(np.asarray(load[used], np.float64), wait.sum(0, dtype=np.float64)[used], flow_hops, drain)


def diameter(mesh: Fabric) -> int:
    """The most hops between two chips, found by going to the farthest one twice: exact, or a hop or two short."""
    near, back = live_neighbours(mesh)
    farthest, hops = 0, 0
    for _ in range(3):
        tree = np.full((1, mesh.size), -1, np.int8)
        tree[0, mesh.live] = grow(near, back, farthest, np.ones(near.shape, np.int64))
        depth = depths(mesh, tree)[0, mesh.live]
        farthest, hops = int(np.argmax(depth)), max(hops, int(depth.max()))
    return hops


def _most(times: npt.NDArray[np.float64]) -> float:
    return float(times.max(initial=0.0))
