"""Carries out the operations of a sharded round with Open MPI's ULFM.

Members of one host read each other's memory, as in `transport/shared_memory.py`: whoever takes a slice adds it up from
all parts, and copies the new weights of the others from those that give them out. MPI only says when, and who died.

What goes between hosts: `between_hosts_mpi.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from meshmend.base.clocks import EXIT_POLL, EXIT_REST
from meshmend.job.courier.between_hosts_mpi import BetweenHosts
from meshmend.job.courier.copies_mpi import Copies
from meshmend.job.courier.holder_port import HolderPort
from meshmend.job.courier.mpi import Mpi
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
        """The messages of all members of this host."""
        self._held: npt.NDArray[np.bool_] = np.zeros((0, slices), np.bool_)
        """Which member holds which slice, as the last comparison has shown."""
        self._between: list[BetweenHosts] = []
        """One per group; something late may still arrive in the memory of past ones."""
        self._copies: list[Copies] = []
        """The same."""

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

    def between(self) -> BetweenHosts:
        """What the present group sends between its hosts."""
        members = [*self.members().values()]
        if not self._between or self._between[-1].comm is not self.active:
            self._between.append(BetweenHosts(self.active, members, self.holder))
        return self._between[-1]

    @property
    def near(self) -> bool:
        """Whether all of them are on one host."""
        return len({member.host for member in self.members().values()}) == 1

    def copy(self, fills: Sequence[Fill]) -> None:
        """Give copies of slices to their new holders, and take those that are meant for this one."""
        if not fills:
            return
        mine = self.worker.hello().rank
        if not self._copies or self._copies[-1].comm is not self.active:
            self._copies.append(Copies(self.active, self.members()))
        given = {fill.slice for fill in fills if fill.source == mine}
        copies = self.holder.copies_of(given, self.look) if given else {}
        for number, copy in self._copies[-1].swap(mine, fills, copies).items():
            if isinstance(copy, Hello):
                self.holder.fill_from(number, copy, self.look)
            else:
                self.holder.fill(number, copy, self.look)

    def scatter(self, round: int, slices: Collection[int], takers: Sequence[Collection[int]]) -> Total:
        """Every member sends each slice of its part to all that take it, and adds up what it takes itself."""
        if self.known is not self.active or self.met != self.worker.generation:
            every = self.hellos(self.active)
            check_layouts(every)
            here = every[self.active.Get_rank()].host
            self._parts = self.holder.neighbours([member for member in every if member.host == here])
            self.known, self.met = self.active, self.worker.generation
        patient(self.active.Ibarrier())
        self.holder.drop_copies()
        self.holder.before("add")
        if self.near:
            return self.holder.add(round, slices, self._parts)
        return self.between().scatter(round, takers, self._parts)

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
        self._held = held
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
        mine = self.worker.hello().rank
        self.holder.gives([number for number, rank in enumerate(givers) if rank == mine])
        held = self.holder.digests().keys()
        if self.near:
            self.holder.before("take")
            others = [number for number in range(self.slices) if number not in held] if take else []
            group = self.members()
            self.holder.copy_weights({number: group[givers[number]] for number in others})
            return
        self.between().give(givers, self._held, take=take)

    def gather(self, record: Record) -> list[Record]:
        """Everyone's record, as numbers."""
        assert isinstance(record, ShardedRecord)
        fields = [
            record.rank, record.done, record.active, record.fresh, record.origin, record.attempt, record.world,
            record.shrink, record.leaving, *record.met, *record.came, *record.joined,
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
        rank, done, active, fresh, origin, attempt, world, shrink, leaving, *rest = fields
        lanes, held, wrong = np.split(flags, [self.lanes, self.lanes + self.slices])
        return ShardedRecord(
            rank, done, bool(active), tuple(np.flatnonzero(lanes).tolist()), bool(fresh), origin, attempt, world,
            shrink, met=(rest[0], rest[1], rest[2]), held=frozenset(np.flatnonzero(held).tolist()),
            came=(rest[3], rest[4]), joined=(rest[5], rest[6]), leaving=bool(leaving),
            wrong=frozenset(np.flatnonzero(wrong).tolist()),
        )  # fmt: skip
