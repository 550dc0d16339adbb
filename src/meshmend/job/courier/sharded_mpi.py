"""Carries out the operations of a sharded round with Open MPI's ULFM.

Members of one host read each other's memory, as in `transport/shared_memory.py`: whoever takes a slice adds it up from
all parts, and copies the new weights of the others from those that give them out. MPI only says when, and who died.

Between hosts a slice's stretch of every part goes to all that take it, in one exchange of all with all per piece; the
notes and the footer, which everybody needs, are added up by MPI. New weights go from their givers to everybody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from meshmend.base.clocks import EXIT_POLL, EXIT_REST
from meshmend.job.courier.mpi import Bytes, Mpi, WorkerPort
from meshmend.job.protocol import Record, Total
from meshmend.job.sharding import (
    Compare,
    Fill,
    Give,
    Measure,
    Meet,
    Prepare,
    Scatter,
    ShardedOperation,
    ShardedRecord,
    Update,
)
from meshmend.job.transport.base import PIECE, Buffers, Hello, patient
from meshmend.job.transport.choose import check_layouts

Wire = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float32]
Sums = npt.NDArray[np.float64]
Stretch = tuple[int, int, int]
"""(slice, begin, end): some numbers of a slice."""


class HolderPort(WorkerPort, Protocol):
    """What a courier sees of a worker that holds slices (`job/slices/holder.py`)."""

    @property
    def bounds(self) -> Sequence[int]:
        """Where each slice begins in the flat state."""

    @property
    def stretches(self) -> Sequence[int]:
        """The same in a message; one that holds no gradients has no slices."""

    @property
    def rest(self) -> Wire:
        """What everybody needs of the part: the notes, and the footer."""

    def take(self, round: int, totals: dict[int, Wire], rest: Wire) -> Total:
        """Keep the totals of a round's slices; what its footer says."""

    def measure(self, round: int, stage: int) -> tuple[Sums, Sums]:
        """The sums of squares of the slices held here, with 0 for the others, and where those of all slices go."""

    def update(self, round: int, slices: Collection[int]) -> None:
        """Have slices updated."""

    def digests(self) -> dict[int, tuple[int, int]]:
        """Of the slices held here."""

    def agree(self, digests: dict[int, tuple[int, int]]) -> None:
        """All holders have these."""

    def weights(self, number: int) -> Floats:
        """Of a slice that is held here."""

    def receive(self, number: int, weights: Floats) -> None:
        """Take the new weights of a slice."""

    def gives(self, slices: Collection[int]) -> None:
        """The slices that are given out from here in this round."""

    def add(self, round: int, slices: Collection[int], parts: Sequence[Buffers]) -> Total:
        """Add up these slices, and what all need, of parts on this host; what the footer says."""

    def copy_weights(self, givers: Mapping[int, Hello]) -> None:
        """Take the new weights of these slices from members of this host."""

    def copies_of(self, slices: Collection[int], look: Callable[[], None]) -> dict[int, Bytes]:
        """Copies of slices, for other holders; `look` raises if a member has died meanwhile."""

    def fill(self, number: int, copy: Bytes, look: Callable[[], None]) -> None:
        """Hold a slice from now on; `look` as above."""


class ShardedMpi(Mpi):
    """One courier's place in the group of a sharded job."""

    def __init__(
        self, worker: HolderPort, lanes: int, slices: int, ranks: int, over: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(worker, lanes, over)
        self.holder, self.slices, self.ranks = worker, slices, ranks
        self._members: dict[int, Hello] = {}
        self._of: MPI.Comm | None = None
        self._parts: Sequence[Buffers] = ()
        """The messages of all members, where they are on one host."""

    def carry_out(self, operation: ShardedOperation) -> object:
        """Do one operation."""
        match operation:
            case Prepare(round=current, lanes=lanes, fills=fills):
                self.latest = current.number - 1
                self.worker.begin(current.number, lanes)
                began = time.monotonic()
                self.copy(fills)
                while not self.worker.ready(max(EXIT_POLL, min((time.monotonic() - began) / 8, EXIT_REST))):
                    self.look()
                return None
            case Scatter(round=current, slices=slices, takers=takers):
                return self.scatter(current.number, slices, takers)
            case Meet():
                patient(self.active.Ibarrier())
                return None
            case Measure(round=number, stage=stage):
                self.measure(number, stage)
                return None
            case Update(round=number, slices=slices):
                self.holder.update(number, slices)
                return None
            case Compare():
                return self.compare()
            case Give(givers=givers, take=take):
                self.give(givers, take=take)
                return None
        return super().carry_out(operation)

    def members(self) -> dict[int, Hello]:
        """Who is in the present group, by rank, in order of positions."""
        if self._of is not self.active:
            self._members, self._of = {one.rank: one for one in self.hellos(self.active)}, self.active
        return self._members

    def places(self) -> dict[int, int]:
        """The position of each rank in the present group."""
        return {rank: place for place, rank in enumerate(self.members())}

    @property
    def near(self) -> bool:
        """Whether all of them are on one host."""
        return len({member.host for member in self.members().values()}) == 1

    def copy(self, fills: Sequence[Fill]) -> None:
        """Copy slices, one after another, all members in the same order."""
        places, mine = self.places(), self.worker.hello().rank
        given = {fill.slice for fill in fills if fill.source == mine}
        copies = self.holder.copies_of(given, self.look) if given else {}
        for fill in fills:
            size = np.zeros(1, np.int64)
            if mine == fill.source:
                data = copies[fill.slice]
                size[0] = len(data)
                patient(self.active.Isend(size, places[fill.target]))
                for begin in range(0, len(data), PIECE):
                    patient(self.active.Isend(data[begin : begin + PIECE], places[fill.target]))
            elif mine == fill.target:
                patient(self.active.Irecv(size, places[fill.source]))
                data = np.empty(int(size[0]), np.uint8)
                for begin in range(0, len(data), PIECE):
                    patient(self.active.Irecv(data[begin : begin + PIECE], places[fill.source]))
                self.holder.fill(fill.slice, data, self.look)

    def scatter(self, round: int, slices: Collection[int], takers: Sequence[Collection[int]]) -> Total:
        """Every member sends each slice of its part to all that take it, and adds up what it takes itself."""
        if self.known is not self.active or self.met != self.worker.generation:
            every = self.hellos(self.active)
            check_layouts(every)
            self._parts = self.holder.neighbours(every) if self.near else ()
            self.known, self.met = self.active, self.worker.generation
        patient(self.active.Ibarrier())
        if self._parts:
            self.holder.before("add")
            return self.holder.add(round, slices, self._parts)
        places, mine = self.places(), self.worker.hello().rank
        part, members, bounds = self.holder.part, self.active.Get_size(), self.holder.stretches
        totals = {number: np.zeros(bounds[number + 1] - bounds[number], part.dtype) for number in slices}
        for some in _pieces(bounds, members):
            to: list[list[Stretch]] = [[] for _ in range(members)]
            for one in some:
                for rank in takers[one[0]]:
                    to[places[rank]].append(one)
            sizes = [sum(end - begin for _, begin, end in ones) for ones in to]
            out = np.concatenate([part[:0], *(part[begin:end] for ones in to for _, begin, end in ones)])
            own = to[places[mine]]
            size = sizes[places[mine]]
            arrived = np.empty((members, size), part.dtype)
            patient(self.active.Ialltoallv([out, sizes], [arrived, [size] * members]))
            total, place = np.add.reduce(arrived, axis=0, dtype=part.dtype), 0
            for number, begin, end in own:
                if number in totals:
                    here = slice(begin - bounds[number], end - bounds[number])
                    totals[number][here] = total[place : place + end - begin]
                place += end - begin
        rest = self.holder.rest.copy()
        summed = np.empty_like(rest)
        step = PIECE // rest.itemsize
        for begin in range(0, len(rest), step):
            patient(self.active.Iallreduce(rest[begin : begin + step], summed[begin : begin + step], MPI.SUM))
        return self.holder.take(round, totals, summed)

    def measure(self, round: int, stage: int) -> None:
        """All holders of a slice have the same sums of squares, and all others 0: so the largest is the one."""
        mine, every = self.holder.measure(round, stage)
        step = PIECE // mine.itemsize
        for begin in range(0, len(mine), step):
            patient(self.active.Iallreduce(mine[begin : begin + step], every[begin : begin + step], MPI.MAX))

    def compare(self) -> dict[int, dict[int, int]]:
        """The digests of slices whose copies differ; where none do, all holders agree on them."""
        mine = self.holder.digests()
        table = np.zeros((self.slices, 3), np.uint64)
        if mine:
            table[list(mine), 0] = 1
            table[list(mine), 1:] = np.array(list(mine.values()), np.uint64)
        every = np.empty((self.active.Get_size(), *table.shape), np.uint64)
        patient(self.active.Iallgather(table, every))
        ranks, held = list(self.members()), every[:, :, 0] == 1
        first = every[held.argmax(axis=0), np.arange(self.slices)]
        differ = (held[:, :, None] & (every != first)).any(axis=(0, 2))
        if not differ.any():
            numbers = np.flatnonzero(held.any(axis=0))
            self.holder.agree(
                {
                    number: (row[1], row[2])
                    for number, row in zip(numbers.tolist(), first[numbers].tolist(), strict=True)
                }
            )
        return {
            number: {
                ranks[place]: int(every[place, number, 1]) << 64 | int(every[place, number, 2])
                for place in np.flatnonzero(held[:, number]).tolist()
            }
            for number in np.flatnonzero(differ).tolist()
        }

    def give(self, givers: Sequence[int], *, take: bool) -> None:
        """Everyone receives the new weights of all slices."""
        places, mine, bounds = self.places(), self.worker.hello().rank, self.holder.bounds
        self.holder.gives([number for number, rank in enumerate(givers) if rank == mine])
        held = self.holder.digests().keys()
        if self.near:
            self.holder.before("take")
            others = [number for number in range(self.slices) if number not in held] if take else []
            group = self.members()
            self.holder.copy_weights({number: group[givers[number]] for number in others})
            return
        found = {number: np.empty(bounds[number + 1] - bounds[number], np.float32) for number in range(self.slices)}
        members = self.active.Get_size()
        for some in _pieces(bounds, members):
            by: list[list[Stretch]] = [[] for _ in range(members)]
            for one in some:
                by[places[givers[one[0]]]].append(one)
            sizes = [sum(end - begin for _, begin, end in ones) for ones in by]
            own = [
                self.holder.weights(number)[begin - bounds[number] : end - bounds[number]]
                for number, begin, end in by[places[mine]]
            ]
            arrived = np.empty(sum(sizes), np.float32)
            patient(self.active.Iallgatherv(np.concatenate([*own, np.zeros(0, np.float32)]), [arrived, sizes]))
            place = 0
            for number, begin, end in (one for ones in by for one in ones):
                found[number][begin - bounds[number] : end - bounds[number]] = arrived[place : place + end - begin]
                place += end - begin
        for number, weights in found.items():
            if take and number not in held:
                self.holder.receive(number, weights)

    def gather(self, record: Record) -> list[Record]:
        """Everyone's record, as numbers."""
        assert isinstance(record, ShardedRecord)
        fields = [
            record.rank, record.done, record.active, record.fresh, record.origin, record.world, record.shrink,
            record.leaving, *record.met, *record.came, *record.joined,
        ]  # fmt: skip
        flags = np.zeros(self.lanes + self.slices + self.ranks, np.int64)
        flags[list(record.lanes)] = 1
        flags[[self.lanes + number for number in record.held]] = 1
        flags[[self.lanes + self.slices + rank for rank in record.wrong]] = 1
        mine = np.array([*fields, *flags], np.int64)
        every = np.empty((self.world.Get_size(), len(mine)), np.int64)
        patient(self.world.Iallgather(mine, every))
        found = [self._record(row[: len(fields)].tolist(), row[len(fields) :]) for row in every]
        self.latest = max([-1, *(one.met[0] for one in found if one.active)])
        return [*found]

    def _record(self, fields: list[int], flags: npt.NDArray[np.int64]) -> ShardedRecord:
        rank, done, active, fresh, origin, world, shrink, leaving, *rest = fields
        lanes, held, wrong = np.split(flags, [self.lanes, self.lanes + self.slices])
        return ShardedRecord(
            rank, done, bool(active), tuple(np.flatnonzero(lanes).tolist()), bool(fresh), origin, world, shrink,
            met=(rest[0], rest[1], rest[2]), held=frozenset(np.flatnonzero(held).tolist()), came=(rest[3], rest[4]),
            joined=(rest[5], rest[6]), leaving=bool(leaving), wrong=frozenset(np.flatnonzero(wrong).tolist()),
        )  # fmt: skip


def _pieces(bounds: Sequence[int], members: int) -> Iterator[list[Stretch]]:
    """All slices in stretches, so many at a time that no message of a member is longer than a piece."""
    most = max(1, PIECE // 4 // members)
    some: list[Stretch] = []
    room = most
    for number, (begin, end) in enumerate(pairwise(bounds)):
        while begin < end:
            stop = min(end, begin + room)
            some.append((number, begin, stop))
            room, begin = room - (stop - begin), stop
            if not room:
                yield some
                some, room = [], most
    if some:
        yield some
