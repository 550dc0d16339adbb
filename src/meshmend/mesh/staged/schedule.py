"""A staged plan on the clock: the same table of transfers, and for each of them which partial sum it moves.

A chip holds several partial sums of a chunk at once, one for each tree that it is in. Each is a **cell**. What a cell
holds is what has arrived in it, and what its `source` holds: the chip's own part in the first stage, in later stages
the cell in which the chip was a root of the stage before. A transfer takes what one cell holds and puts it into
another, at a neighbour. Every chip has a result cell for each flow; in the end it must hold every chip's part once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshmend.errors import PlanError
from meshmend.mesh import Fabric
from meshmend.mesh.digest import digest_of, read_only
from meshmend.mesh.planners.cost import LinkSpeed
from meshmend.mesh.planners.plan import depths, parents_of
from meshmend.mesh.schedule.schedule import Schedule, busy_slots, clock_for
from meshmend.mesh.schedule.scheduler import serve
from meshmend.mesh.staged.plan import ABSENT, ROOT, StagedFlow, StagedPlan, chunks_for

Places = npt.NDArray[np.int32]
OWN, NOTHING = -1, -2
"""Sources that are no cell: the chip's own part, and nothing at all."""
AHEAD = 2.0
"""How much earlier chunks go first, compared with those that have the longest way left; chosen by a sweep on tori."""
COLUMNS = ("take", "put", "chip", "source", "result", "flow")


@dataclass(frozen=True, eq=False)
class StagedSchedule:
    """Who sends which partial sum of which chunk over which link in which slot."""

    table: Schedule = field(repr=False)
    """The transfers: slot, link, chunk, and whether the receiver's cell is replaced or added to."""
    take: Places = field(repr=False)
    """The cell that each transfer is taken from."""
    put: Places = field(repr=False)
    """The cell that it is put into."""
    chip: Places = field(repr=False)
    """The chip of each cell."""
    source: Places = field(repr=False)
    """The cell of the same chip that each cell begins with; OWN for the chip's part, NOTHING for an empty one."""
    result: Places = field(repr=False)
    """[flow, live chip]: the cell that holds the sum in the end."""
    flow: Places = field(repr=False)
    """The flow of each chunk."""

    def __post_init__(self) -> None:
        for name in COLUMNS:
            object.__setattr__(self, name, read_only(getattr(self, name)))

    @property
    def mesh(self) -> Fabric:
        """Where it runs."""
        return self.table.mesh

    @property
    def chunks(self) -> int:
        """Chunks of the payload."""
        return self.table.chunks

    @cached_property
    def digest(self) -> bytes:
        """What names this schedule: equal for equal tables on equal meshes, and for no others."""
        return digest_of(f"staged|{self.table.digest.hex()}", [getattr(self, name) for name in COLUMNS])

    def __len__(self) -> int:
        return len(self.table)

    @property
    def slots(self) -> int:
        """Slots until the last chunk has arrived."""
        return self.table.slots

    @property
    def algbw(self) -> float:
        """Payload per time in units of B, filling and draining included."""
        return self.table.algbw

    def seconds(self, nbytes: float, link: str | LinkSpeed = "tpu-v3") -> float:
        """The time of one all-reduce of `nbytes` on links whose latency this schedule's `hop` covers."""
        return self.table.seconds(nbytes, link)


def schedule(
    plan: StagedPlan,
    chunks: int | None = None,
    *,
    nbytes: float | None = None,
    link: str | LinkSpeed = "tpu-v3",
    hop: int | None = None,
) -> StagedSchedule:
    """Put a staged plan on the clock. `nbytes` and `link` set chunks and hop by rule; else a chunk per flow."""
    if nbytes is not None and not 0 < nbytes < math.inf:
        raise PlanError(f"nbytes={nbytes}: a payload has at least 1 byte")
    if chunks is None:
        chunks = len(plan) if nbytes is None else chunks_for(plan, nbytes, link)
    if isinstance(chunks, bool) or not isinstance(chunks, (int, np.integer)) or chunks < 1:
        raise PlanError(f"chunks={chunks!r}: give a whole number of at least 1")
    count = np.full(len(plan), chunks // len(plan), np.int64)
    count[: chunks % len(plan)] += 1
    hop, pace = clock_for(plan.mesh, chunks, nbytes, link, hop, even=False)
    cells, streams = _streams(plan)
    busy = busy_slots(plan.mesh, pace)
    of_stream = count[streams.flow]
    first = np.concatenate([[0], np.cumsum(of_stream)]).astype(np.int64)
    turn = np.arange(first[-1]) - np.repeat(first[:-1], of_stream)
    # Those with the longest way left go first, and of equal ones the earlier chunks.
    key = (AHEAD * turn * max(1, pace) - np.repeat(streams.left * hop, of_stream)).astype(np.float32)
    timing = serve(streams.link, of_stream, _waits(streams, cells.source), key, hop - max(1, pace), busy)
    first_chunk = np.concatenate([[0], np.cumsum(count)[:-1]])
    chunk = turn + np.repeat(first_chunk[streams.flow], of_stream)
    table = Schedule(
        plan.mesh, chunks, hop, timing.slot, streams.link[timing.stream], chunk[timing.order].astype(np.int32),
        streams.copy[timing.stream], pace,
    )  # fmt: skip
    return StagedSchedule(
        table, streams.take[timing.stream], streams.put[timing.stream], cells.chip, cells.source, cells.result,
        np.repeat(np.arange(len(plan)), count).astype(np.int32),
    )  # fmt: skip


class _Cells(NamedTuple):
    chip: Places
    source: Places
    result: Places


class _Streams(NamedTuple):
    """One for each link of each tree: what flows over it, chunk by chunk."""

    flow: npt.NDArray[np.int64]
    link: Places
    take: Places
    put: Places
    copy: npt.NDArray[np.bool_]
    left: npt.NDArray[np.int64]
    """Hops until the last chip has what depends on it."""


def _streams(plan: StagedPlan) -> tuple[_Cells, _Streams]:
    """The cells and streams of all flows."""
    cells: list[_Cells] = []
    streams: list[_Streams] = []
    begin = 0
    for number, flow in enumerate(plan.flows):
        of_flow, in_flow = _flow_streams(plan.mesh, flow, number, begin)
        begin += len(of_flow.chip)
        cells.append(of_flow)
        streams.append(in_flow)
    chip, source, result = zip(*cells, strict=True)
    return (
        _Cells(np.concatenate(chip), np.concatenate(source), np.stack(result)),
        _Streams(*(np.concatenate(column) for column in zip(*streams, strict=True))),
    )


def _flow_streams(mesh: Fabric, flow: StagedFlow, number: int, begin: int) -> tuple[_Cells, _Streams]:
    chips: list[npt.NDArray[Any]] = []
    sources: list[npt.NDArray[Any]] = []
    takes, puts, links, lefts = [], [], [], []
    root_cell = np.full(mesh.size, OWN, np.int32)  # what each chip begins the stage with
    deepest = [int(depths(mesh, stage).max(initial=0)) for stage in flow.stages]
    down_hops = depths(mesh, flow.down[None])[0]
    after = sum(deepest) + int(down_hops.max())
    for stage, deep in zip(flow.stages, deepest, strict=True):
        after -= deep
        layer, chip = np.nonzero(stage != ABSENT)
        cell = np.full(stage.shape, -1, np.int32)
        cell[layer, chip] = begin + np.arange(len(chip))
        begin += len(chip)
        chips.append(chip)
        sources.append(root_cell[chip])
        layer, chip = np.nonzero(stage >= 0)
        takes.append(cell[layer, chip])
        puts.append(cell[layer, parents_of(mesh, stage)[layer, chip]])
        links.append(mesh.link_number(chip, stage[layer, chip]))
        lefts.append(depths(mesh, stage)[layer, chip] + after)
        layer, chip = np.nonzero(stage == ROOT)
        root_cell = np.full(mesh.size, NOTHING, np.int32)
        root_cell[chip] = cell[layer, chip]
    result = begin + np.arange(len(mesh.live), dtype=np.int32)
    chips.append(mesh.live)
    sources.append(root_cell[mesh.live])
    ups = sum(map(len, takes))
    chip = np.flatnonzero(flow.down >= 0)
    parent = parents_of(mesh, flow.down[None])[0, chip]
    takes.append(result[mesh.place[parent]])
    puts.append(result[mesh.place[chip]])
    links.append(mesh.reverse[mesh.link_number(chip, flow.down[chip])])
    lefts.append(int(down_hops.max()) - down_hops[chip] + 1)
    take = np.concatenate(takes).astype(np.int32)
    return (
        _Cells(np.concatenate(chips).astype(np.int32), np.concatenate(sources).astype(np.int32), result),
        _Streams(
            np.full(len(take), number), np.concatenate(links).astype(np.int32), take,
            np.concatenate(puts).astype(np.int32), np.arange(len(take)) >= ups, np.concatenate(lefts).astype(np.int64),
        ),
    )  # fmt: skip


def _waits(streams: _Streams, source: Places) -> tuple[Places, Places]:
    """Pairs (before, after) of streams: what is taken must have arrived, in its cell and in those it begins with."""
    order = np.argsort(streams.put, kind="stable").astype(np.int32)
    begin = np.searchsorted(streams.put[order], np.arange(len(source) + 1))
    before, after = [], []
    cell, stream = streams.take, np.arange(len(streams.take), dtype=np.int32)
    while len(cell):
        for turn in range(int(np.diff(begin).max(initial=0))):
            at = begin[cell] + turn
            real = at < begin[cell + 1]
            before.append(order[at[real]])
            after.append(stream[real])
        cell = source[cell]
        cell, stream = cell[cell >= 0], stream[cell >= 0]
    return np.concatenate(before), np.concatenate(after)
