"""One all-reduce on a network of links, chunk by chunk: when it ends, what each link did, what a death leaves behind.

    flight = mm.simulate(plan, nbytes=102e6, link="tpu-v3")
    flight.seconds, flight.algbw, flight.use().max()

A **network** says what links and chips can do; a **flight** is one all-reduce on it, with the times of every transfer.
A chunk goes when its parts have arrived and the link is free (`engine.py`), not by slots. Chips pass on what they get
chunk by chunk, so a chip on the way of a result is a relay that costs one chunk's time and one latency.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from meshmend.base.registry import Registry
from meshmend.base.units import duration_text
from meshmend.errors import SimulateError
from meshmend.mesh import Fabric
from meshmend.mesh.collectives import CollectivePlan, CollectiveSchedule
from meshmend.mesh.planners import LINKS, LinkSpeed, Plan
from meshmend.mesh.schedule import Schedule
from meshmend.mesh.schedule import schedule as on_the_clock
from meshmend.mesh.staged import StagedPlan, StagedSchedule
from meshmend.simulator.network.engine import first_come, holdings, in_order, in_order_of_cells

Floats = npt.NDArray[np.float64]
Order = Literal["schedule", "first-come"]


@dataclass(frozen=True, kw_only=True)
class Network:
    """What every whole link can do each way, and every chip; the mesh says which links are slower."""

    bandwidth: float
    """Bytes per second."""
    latency: float
    """Seconds per hop."""
    overhead: float = 0.0
    """Seconds that each message costs by itself, during which its link carries nothing else."""
    adds: float = math.inf
    """Bytes per second that a chip can add to what it has."""

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth < math.inf:
            raise SimulateError(f"bandwidth={self.bandwidth}: give bytes per second above 0, and not infinite")
        if not self.adds > 0:
            raise SimulateError(f"adds={self.adds}: give bytes per second above 0")
        for name in ("latency", "overhead"):
            if not 0 <= getattr(self, name) < math.inf:
                raise SimulateError(f"{name}={getattr(self, name)}: give seconds, 0 or more")

    def service(self, mesh: Fabric, size: float) -> Floats:
        """Seconds for which a chunk of so many bytes occupies each directed link."""
        return np.asarray(self.overhead + size / self.bandwidth / mesh.speed)

    @property
    def link(self) -> LinkSpeed:
        """A link as planners see it: to them, the cost of a message is like latency."""
        return LinkSpeed(self.bandwidth, self.latency + self.overhead)


NETWORKS: Registry[Network] = Registry(
    "network",
    SimulateError,
    {name: Network(bandwidth=link.bandwidth, latency=link.latency) for name, link in LINKS.items()},
)


def network_for(link: str | LinkSpeed | Network) -> Network:
    """A network by the name of its links, or as it is."""
    if isinstance(link, Network):
        return link
    if isinstance(link, LinkSpeed):
        return Network(bandwidth=link.bandwidth, latency=link.latency)
    return NETWORKS.find(link, instead="a Network")


@dataclass(frozen=True, eq=False)
class Flight:
    """One all-reduce: `begin[i]` and `arrive[i]` are the times of transfer i of its schedule, infinite if it never was.

    A transfer has arrived when the receiver has it and, where it is a part of a sum, has added it.
    """

    schedule: Schedule
    nbytes: float
    network: Network
    begin: Floats = field(repr=False)
    arrive: Floats = field(repr=False)
    cut: int = 0
    """Chunks of one payload, where groups or chips have payloads of their own; 0 where all chunks are one payload's."""

    @property
    def seconds(self) -> float:
        """The time until every chip has the whole sum; infinite if some never get it."""
        return float(self.arrive.max()) if len(self.arrive) else 0.0

    @property
    def algbw(self) -> float:
        """Payload per time, in units of one link's bandwidth."""
        return self.nbytes / self.seconds / self.network.bandwidth if self.seconds else math.inf

    @property
    def service(self) -> Floats:
        """Seconds for which one chunk occupies each directed link."""
        return self.network.service(self.schedule.mesh, self.nbytes / (self.cut or self.schedule.chunks))

    @property
    def end(self) -> float:
        """When the last link fell silent, or if every chip got the sum, when the last one had it."""
        if math.isfinite(self.seconds):
            return self.seconds
        sent = np.isfinite(self.begin)
        return float((self.begin[sent] + self.service[self.schedule.link[sent]]).max(initial=0.0))

    def use(self, bins: int = 1) -> Floats:
        """[directed link, bin]: the part of the time in which the link was busy; links are those that are alive."""
        links = self.schedule.mesh.directed_links
        whole = self.end
        busy = np.zeros((self.schedule.mesh.link_numbers, bins + 1))
        sent = np.isfinite(self.begin)
        start = self.begin[sent] / whole * bins
        of = self.schedule.link[sent]
        end = np.minimum(start + self.service[of] / whole * bins, bins)
        # A transfer covers parts of its first and last bin and all bins between: add slopes, then sum along time.
        first, last_bin = np.minimum(start.astype(np.int64), bins - 1), np.minimum(end.astype(np.int64), bins)
        same = first == last_bin
        np.add.at(busy, (of[same], first[same]), end[same] - start[same])
        of, start, end, first, last_bin = (array[~same] for array in (of, start, end, first, last_bin))
        np.add.at(busy, (of, first), first + 1 - start)
        np.add.at(busy, (of, last_bin), end - last_bin)
        full = np.zeros_like(busy)
        np.add.at(full, (of, first + 1), 1)
        np.add.at(full, (of, last_bin), -1)
        return np.asarray((busy + full.cumsum(1))[links, :bins])

    def parts(self, seconds: float = math.inf) -> npt.NDArray[np.int32]:
        """[live chip, chunk]: how many chips' parts are in what a chip holds at this time. All is len(mesh.live)."""
        if self.cut:
            raise SimulateError("parts are counted in an all-reduce over all chips only: verify follows them in others")
        table, place = self.schedule, self.schedule.mesh.place
        return np.asarray(
            holdings(
                place[table.sender], place[table.receiver], table.chunk, table.copy,
                (self.arrive <= seconds) & np.isfinite(self.arrive), len(table.mesh.live), table.chunks,
            )
        )  # fmt: skip

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write a trace for Perfetto (ui.perfetto.dev), with a track for each link."""
        # Downwards and so only when called: what is written is made from a flight.
        from meshmend.simulator.network.views import write_trace

        write_trace(self, path)

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Draw how busy each link was over time, as PNG or SVG."""
        from meshmend.simulator.network.views import draw_heat

        draw_heat(self, path)


ORDERS: Registry[Any] = Registry("order", SimulateError, {"schedule": in_order, "first-come": first_come})
"""How links choose the next chunk."""


def simulate(
    what: Plan | Schedule | CollectivePlan | CollectiveSchedule | StagedPlan | StagedSchedule,
    nbytes: float,
    link: str | LinkSpeed | Network = "tpu-v3",
    *,
    chunks: int | None = None,
    order: Order = "schedule",
    dies: Mapping[str, float] | None = None,
) -> Flight:
    """Run one all-reduce of a payload, or another collective of a payload (in each group, if there are groups).

    `order`: links keep to the schedule and wait for the next in line, as executors do, or serve in order of arrival.
    `dies`: holes that come up on the way, as `{"-4x2@6,12": 300e-6}`, and the second at which each does.
    """
    if not 0 < nbytes < math.inf:
        raise SimulateError(f"nbytes={nbytes}: a payload has at least 1 byte")
    net = network_for(link)
    given = (
        what.chunks
        if isinstance(what, Schedule | StagedSchedule)
        else what.cut
        if isinstance(what, CollectiveSchedule)
        else None
    )
    if given is not None and chunks not in (None, given):
        raise SimulateError(f"chunks={chunks}: this schedule has {given} chunks already; give its plan instead")
    if isinstance(what, StagedPlan | StagedSchedule):
        if order != "schedule":
            raise SimulateError(f"order={order!r}: links keep to the schedule in staged plans, so leave order out")
        if isinstance(what, StagedPlan):
            what = what.schedule(chunks, nbytes=nbytes, link=net.link)
        return _staged(what, nbytes, net, _deaths(what.mesh, dies or {}))
    if isinstance(what, CollectivePlan):
        what = what.schedule(chunks, nbytes=nbytes, link=net.link)
    cut = what.cut if isinstance(what, CollectiveSchedule) else 0
    if isinstance(what, CollectiveSchedule):
        what = what.table
    table = what if isinstance(what, Schedule) else on_the_clock(what, chunks, nbytes=nbytes, link=net.link)
    engine = ORDERS.find(order)
    size, place, deaths = nbytes / (cut or table.chunks), table.mesh.place, _deaths(table.mesh, dies or {})
    begin, arrive = engine(
        table.link, place[table.sender], place[table.receiver], table.chunk, table.copy, len(table.mesh.live),
        table.chunks, net.service(table.mesh, size), net.latency, size / net.adds, deaths,
    )  # fmt: skip
    return Flight(table, nbytes, net, begin, arrive, cut)


def _staged(what: StagedSchedule, nbytes: float, net: Network, deaths: Floats) -> Flight:
    """A staged schedule, in which parts cannot be counted chip by chip: a chip has several at once."""
    table, size = what.table, nbytes / what.chunks
    ends = what.result.max(1)
    if (np.diff(ends) <= 0).any() or ends[-1] != len(what.chip) - 1 or (np.diff(what.flow) < 0).any():
        raise SimulateError("the cells of this schedule are not in order of flows: make it with plan.schedule()")
    count = np.bincount(what.flow, minlength=len(what.result))
    flow = np.searchsorted(ends, np.arange(len(what.chip)))  # cells of a flow end with its results
    first = np.concatenate([[0], np.cumsum(count[flow])])
    from_chunk = np.searchsorted(what.flow, np.arange(len(count)))[flow].astype(np.int32)
    begin, arrive = in_order_of_cells(
        table.link, what.take, what.put, table.mesh.place[table.receiver], table.chunk, table.copy, what.source, first,
        from_chunk, int(first[-1]), net.service(table.mesh, size), net.latency, size / net.adds, deaths,
        len(table.mesh.live),
    )  # fmt: skip
    return Flight(table, nbytes, net, begin, arrive, what.chunks)


def _deaths(mesh: Fabric, dies: Mapping[str, float]) -> Floats:
    """When each directed link dies."""
    dead = np.full(mesh.link_numbers, math.inf)
    for hole, when in dies.items():
        if not when >= 0:
            raise SimulateError(f"{hole!r} dies at {duration_text(when)}: give a time of 0 or more")
        broken = (mesh.neighbour >= 0) & (mesh.fail(hole).neighbour < 0)
        if not broken.any():
            raise SimulateError(f"{hole!r} is already dead in {mesh}: only live chips and links can die during a sum")
        dead[broken.ravel()] = np.minimum(dead[broken.ravel()], when)
    return dead
