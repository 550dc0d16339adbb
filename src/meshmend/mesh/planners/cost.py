"""What a link can do, and what a plan will take on it: the figures that plans are ranked by.

A chunk occupies a link for its size / bandwidth; it is there one latency later, while the link already carries the
next. A link works for `S * load / B` in all; it waits until the first chunk can have reached it, and its last chunk
has hops left to travel, each `S / (K * B) + latency` in a payload S of K chunks. The last link to end gives the time.
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
from meshmend.mesh.planners.plan import Plan, depths, heights

MOST_CHUNKS = 4096
SMALLEST_CHUNK = 1024
"""Bytes: below that, what each message costs by itself outweighs its transfer on real links."""
FILL = 0.05
"""The part of the busiest link's time that filling and draining may take."""


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
    """How many chunks: enough that filling costs little, and a hop's latency a whole number of chunk times."""
    speed = link_speed(link)
    most = max(1, min(MOST_CHUNKS, int(nbytes // SMALLEST_CHUNK)))
    wanted = min(most, max(len(plan), math.ceil(plan.hops / (FILL * max(plan.max_load, 1e-9)))))
    latency_chunks = nbytes / speed.bandwidth / speed.latency if speed.latency else math.inf
    if latency_chunks <= most:
        wanted = min(most, math.ceil(wanted / latency_chunks) * int(latency_chunks))
    return max(1, wanted)


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
    return sum(max(phase.hops * hop, _most(payload * phase.load + hop * phase.wait)) for phase in _PROFILES[plan])


class _Phase(NamedTuple):
    """What does not depend on the payload: for each link in use, what it carries and the hops before and after."""

    load: npt.NDArray[np.float64]
    wait: npt.NDArray[np.float64]
    hops: int


_PROFILES: WeakKeyDictionary[Plan, list[_Phase]] = WeakKeyDictionary()


def _phases(plan: Plan) -> Iterator[_Phase]:
    """One phase, or where all reducing ends before broadcasting begins, two."""
    up, down = _crossings(plan)
    if plan.overlap or not len(up.link):
        yield _phase(plan, [up, down], plan.hops)
        return
    up_hops, down_hops = int(up.head.max()) + 1, int(down.tail.max()) + 1
    yield _phase(plan, [up._replace(tail=up.tail - down_hops)], up_hops)
    yield _phase(plan, [down._replace(head=down.head - up_hops)], down_hops)


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


def _phase(plan: Plan, crossings: list[_Crossings], hops: int) -> _Phase:
    """A link waits for the first chunk to reach it, works, and its last chunk travels on."""
    link, share, head, tail = (np.concatenate(column) for column in zip(*crossings, strict=True))
    links = plan.mesh.link_numbers
    load = np.bincount(link, share, minlength=links) / plan.mesh.speed
    wait = np.full((2, links), np.iinfo(np.int64).max)
    np.minimum.at(wait[0], link, head)
    np.minimum.at(wait[1], link, tail)
    used = load > 0
    return _Phase(np.asarray(load[used], np.float64), wait.sum(0, dtype=np.float64)[used], hops)


def _most(times: npt.NDArray[np.float64]) -> float:
    return float(times.max(initial=0.0))
