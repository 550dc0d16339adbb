"""Carries out the protocol's operations with Open MPI's ULFM.

Some habits keep survivors alive (each learnt from crashes, see the ULFM notes of Open MPI 5):

* waiting for others is done by looking now and then, not by spinning: workers need the processor;
* every communicator returns errors, and whichever error comes, recovery is entered;
* sums go in pieces of at most `PIECE` bytes, from a send buffer that nothing else writes to a buffer of their own;
* nothing is pickled: records, totals and states are arrays of numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from meshmend.job.protocol import (  # fmt: skip
    Begin,
    Cast,
    Enlist,
    Failure,
    Gather,
    Operation,
    Payload,
    Record,
    Reduce,
    Revoke,
    Shrink,
    Steps,
    Total,
    Wait,
    Work,
)
from meshmend.job.reduction import bf16
from meshmend.mesh import Mesh
from meshmend.mesh.executors.mpi import MeshSum
from meshmend.mesh.schedule import Schedule

PIECE = 1 << 20
POLL = 0.001
"""Seconds between looks at others that are late."""
LOOK = 0.016
"""Seconds between looks at the group while a worker computes or a spare waits: a look takes processor time from it."""

Bytes = npt.NDArray[np.uint8]
Halves = npt.NDArray[np.uint16]


class Carried(Protocol):
    """What a courier sees of its worker: the buffers it sums, and the state it can hand over."""

    def begin(self, round: int, lanes: tuple[int, ...]) -> None:
        """Ask for the part of a round over these lanes."""

    def ready(self, seconds: float) -> bool:
        """Whether that part is there; sleeps until it is, or for so long."""

    def part(self) -> npt.NDArray[np.generic]:
        """The part to send, footer included."""

    def packed(self) -> int:
        """How many of its first numbers hold bf16 instead."""

    def total(self, round: int) -> npt.NDArray[np.generic]:
        """The buffer for the total of a round; the one of the round before stays as it is."""

    def read(self, total: npt.NDArray[np.generic]) -> Total:
        """The footer of a total."""

    def state(self, round: int) -> Bytes:
        """The state after a round, to give to another worker."""

    def adopt(self, round: int, state: Bytes) -> None:
        """Take over another worker's state after a round."""

    def fetch(self, rank: int) -> None:
        """The same from a worker whose memory is on this host; `Failure` if it is gone."""

    def card(self) -> list[int]:
        """Numbers that tell the others who this is: rank, host, and what it brings."""

    def met(self, cards: npt.NDArray[np.int64]) -> Near | Placed | None:
        """The cards of all members of a new group are here; the way sums take between them, if not the library's own.

        `Failure` where a member has died since.
        """


class Placed(NamedTuple):
    """A plan's way: over the links of a mesh."""

    mesh: Mesh
    schedule: Callable[[], Schedule | None]
    """Makes the schedule; None where the mesh falls apart. One member does it for all: planners are slow to load."""
    chips: list[int]
    """The chip of each member."""
    check: Callable[[], None]
    """Called now and then while sums wait; raises `Failure` when a link is down that they use."""
    halfway: Callable[[], None]
    """Called in the middle of every sum."""


class Near(Protocol):
    """A quicker way to a round's total, where the members of a group can see each other's memory."""

    def add(self, number: int) -> None:
        """When all have their parts: add up this member's slice."""

    def take(self, number: int) -> None:
        """When all have added: take the others' slices."""


def patient(request: MPI.Request) -> None:
    """Wait for the others without taking the processor from workers that still compute."""
    looks = 0
    while not request.Test():
        looks += 1
        time.sleep(0 if looks < 50 else POLL / 5 if looks < 500 else POLL)


def position() -> int:
    """The place of this courier in the world that mpirun started."""
    return MPI.COMM_WORLD.Get_rank()


class Mpi:
    """One courier's place in the group."""

    def __init__(self, worker: Carried, lanes: int, over: Callable[[], bool] = lambda: False) -> None:
        self.worker = worker
        self.near: Near | MeshSum | None = None
        self.past: list[MeshSum] = []
        """Those of groups before: something late may still come for them."""
        self.known: MPI.Comm | None = None
        """The group whose members have met."""
        self.room: list[Halves] = []
        """Where slices of the others come in, one room for each group: something late may still come for an old one."""
        self.lanes = lanes
        self.over = over
        self.latest = -1
        self.world: MPI.Comm = MPI.COMM_WORLD
        self.world.Set_errhandler(MPI.ERRORS_RETURN)
        self.active: MPI.Comm = self.world

    def drive(
        self,
        steps: Steps,
        before: Callable[[Operation], None] = lambda _: None,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """Run a member's attempt to its end; `before` sees each operation first (tests kill there)."""
        try:
            operation = next(steps)
            while True:
                before(operation)
                try:
                    result = self.carry_out(operation)
                except (MPI.Exception, Failure):
                    # Whatever MPI reports, the way out is the same: revoke, and see who is left.
                    failed()
                    operation = steps.throw(Failure())
                else:
                    operation = steps.send(result)
        except StopIteration:
            return

    def carry_out(self, operation: Operation) -> object:
        """Do one operation."""
        match operation:
            case Begin():
                return self.world.Get_rank()
            case Work(round=current, lanes=lanes):
                self.latest = current.number - 1
                self.worker.begin(current.number, lanes)
                while not self.worker.ready(LOOK):
                    self.look()
            case Reduce(round=current):
                return self.sum(current.number)
            case Wait():
                while not self.over():
                    self.look()
                    time.sleep(LOOK)
            case Revoke():
                self.world.Revoke()
                if self.active != MPI.COMM_NULL and self.active is not self.world:
                    self.active.Revoke()
            case Shrink():
                self.world = self.world.Shrink()
                self.world.Set_errhandler(MPI.ERRORS_RETURN)
                self.active = self.world
                return self.world.Get_rank()
            case Gather(record=record):
                return self.gather(record)
            case Cast():
                self.cast(operation)
            case Enlist(active=active):
                self.enlist(active)
        return None

    def look(self) -> None:
        """Keep an eye on the group: where it is revoked or a member is dead, fail here, before anybody calls it."""
        self.world.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        if self.world.Is_revoked():
            raise MPI.Exception(MPI.ERR_REVOKED)
        dead = self.world.Get_failed()
        count = dead.Get_size()
        dead.Free()
        if count:
            raise MPI.Exception(MPI.ERR_PROC_FAILED)

    def sum(self, number: int) -> Total:
        """All-reduce the parts into this round's own buffer, piece by piece."""
        if self.known is not self.active:
            self.meet()
        part, total = self.worker.part(), self.worker.total(number)
        if isinstance(self.near, MeshSum):
            self.near(part, total)
            return self.worker.read(total)
        if self.near is not None:
            patient(self.active.Ibarrier())
            self.near.add(number)
            patient(self.active.Ibarrier())
            self.near.take(number)
            return self.worker.read(total)
        packed, step = self.worker.packed(), max(1, PIECE // part.itemsize)
        patient(self.active.Iallreduce(part[packed : packed + step], total[packed : packed + step], MPI.SUM))
        for begin in range(packed + step, len(part), step):
            self.active.Allreduce(part[begin : begin + step], total[begin : begin + step], MPI.SUM)
        self.sum_bf16(part[:packed].view(np.uint16), total[:packed].view(np.uint16))
        return self.worker.read(total)

    def sum_bf16(self, part: Halves, total: Halves) -> None:
        """MPI has no bf16: send everyone its slice of each piece, add it here (and round once), and share the sums."""
        here, members = self.active.Get_rank(), self.active.Get_size()
        for begin in range(0, len(part), PIECE // 2):
            piece, out = part[begin : begin + PIECE // 2], total[begin : begin + PIECE // 2]
            bounds = len(piece) * np.arange(members + 1) // members
            sizes, places = np.diff(bounds), bounds[:-1]
            size = int(sizes[here])
            theirs = self.room[-1][: members * size].reshape(members, size)
            self.active.Alltoallv((piece, (sizes, places)), (theirs, [size] * members))
            bf16.add(list(theirs), out[bounds[here] : bounds[here + 1]])
            self.active.Allgatherv(MPI.IN_PLACE, (out, (sizes, places)))

    def meet(self) -> None:
        """Once for each group, before its first sum: learn who is in it."""
        found: Near | Placed | MeshSum | None = self.worker.met(self.cards(self.active))
        if isinstance(self.near, MeshSum):
            self.past.append(self.near)
        if isinstance(found, Placed):
            found = self.over_links(found)
        self.near, self.known = found, self.active
        if self.near is None and self.worker.packed():
            self.room.append(np.empty(PIECE // 2 + self.active.Get_size(), np.uint16))

    def over_links(self, placed: Placed) -> MeshSum | None:
        """The first member makes the schedule and sends its table."""
        made = placed.schedule() if self.active.Get_rank() == 0 else None
        head = np.array([made.chunks, made.hop, len(made)] if made else [0, 0, 0], np.int64)
        patient(self.active.Ibcast(head, 0))
        chunks, hop, size = head.tolist()
        if not chunks:
            return None
        table = np.empty((4, size), np.int32)
        if made is not None:
            table[:] = made.slot, made.link, made.chunk, made.copy
        flat = table.ravel()
        for begin in range(0, flat.size, PIECE // 4):
            self.active.Bcast(flat[begin : begin + PIECE // 4], 0)
        schedule = Schedule(placed.mesh, chunks, hop, table[0], table[1], table[2], table[3].astype(bool))

        def idle() -> None:
            self.look()
            placed.check()

        # A group of its own, which is never revoked: in Open MPI 5.0 (ompi #13494) a send that is under way when its
        # group is revoked ends the process. That of others is noticed in `idle`.
        own = self.active.Dup()
        own.Set_errhandler(MPI.ERRORS_RETURN)
        return MeshSum(own, schedule, placed.chips, idle, placed.halfway)

    def cards(self, group: MPI.Comm) -> npt.NDArray[np.int64]:
        """Everyone's card."""
        mine = np.array(self.worker.card(), np.int64)
        cards = np.empty((group.Get_size(), len(mine)), np.int64)
        patient(group.Iallgather(mine, cards))
        return cards

    def gather(self, record: Record) -> list[Record]:
        """Everyone's record, as numbers: its fields, and then a flag for each lane."""
        fields = [record.rank, record.done, record.active, record.fresh, record.origin, record.world, record.shrink]
        flags = np.zeros(self.lanes, np.int64)
        flags[list(record.lanes)] = 1
        mine = np.array([*fields, *flags], np.int64)
        every = np.empty((self.world.Get_size(), len(mine)), np.int64)
        patient(self.world.Iallgather(mine, every))
        self.latest = max([-1, *(int(row[1]) for row in every if row[2])])
        found = []
        for row in every:
            rank, done, active, fresh, origin, world, shrink = row[: len(fields)].tolist()
            lanes = tuple(np.flatnonzero(row[len(fields) :]).tolist())
            found.append(Record(rank, done, bool(active), lanes, bool(fresh), origin, world, shrink))
        return found

    def cast(self, cast: Cast) -> None:
        """Send the last total or the state from one member to those that lack it; the others let it pass."""
        here = self.world.Get_rank() == cast.source
        data: Bytes = np.empty(0, np.uint8)
        if here and cast.what is Payload.TOTAL:
            data = self.worker.total(self.latest).view(np.uint8)
        elif here:
            data = self.worker.state(self.latest)
        cards = self.cards(self.world)
        if cast.what is Payload.STATE and (cards[:, 1] == cards[0, 1]).all():
            if cast.take:
                self.worker.fetch(int(cards[cast.source, 0]))
            return
        size = np.array([len(data)], np.int64)
        patient(self.world.Ibcast(size, cast.source))
        if not here:
            data = np.empty(int(size[0]), np.uint8)
        for begin in range(0, len(data), PIECE):
            self.world.Bcast(data[begin : begin + PIECE], cast.source)
        if cast.take and cast.what is Payload.TOTAL:
            total = self.worker.total(self.latest)
            total[:] = data.view(total.dtype)
        elif cast.take:
            self.worker.adopt(self.latest, data)

    def enlist(self, active: tuple[int, ...]) -> None:
        """Give the active members a group of their own; all get it or none, so that nobody waits for one without it."""
        if len(active) == self.world.Get_size():
            self.active = self.world
            return
        made = MPI.COMM_NULL
        try:
            color = 0 if self.world.Get_rank() in active else MPI.UNDEFINED
            made = self.world.Split(color, self.world.Get_rank())
            if made != MPI.COMM_NULL:
                made.Set_errhandler(MPI.ERRORS_RETURN)
        except MPI.Exception:
            self.world.Agree(0)
            raise
        if not self.world.Agree(1):
            raise MPI.Exception(MPI.ERR_REVOKED)
        self.active = made
