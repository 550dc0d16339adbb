"""Carries out the protocol's operations with Open MPI's ULFM.

Some habits keep survivors alive, each learnt from a crash (see the ULFM notes of Open MPI 5):

* to wait for others, poll now and then instead of spinning: workers need the processor;
* every communicator returns errors, and whatever the error is, recovery begins;
* large messages go in pieces of at most `PIECE` bytes, from a send buffer that nothing else writes to;
* transports of past groups are kept: something late may still arrive in their memory;
* nothing is pickled: records, totals and states are arrays of numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from meshmend.base.clocks import EXIT_POLL, EXIT_REST
from meshmend.job.protocol import (
    Begin,
    Cast,
    Collective,
    Enlist,
    Failure,
    Gather,
    Operation,
    Payload,
    Record,
    Reduce,
    Revoke,
    Round,
    Shrink,
    Total,
    Wait,
    Work,
)
from meshmend.job.shm.records import Outcome, Task, Way, Where
from meshmend.job.transport.base import PIECE, Group, Hello, Port, Transport, least, patient
from meshmend.job.transport.choose import choose

Bytes = npt.NDArray[np.uint8]
NO_STATE = -1
"""In place of the size of a state, where there is none to send."""


class WorkerPort(Port, Protocol):
    """What a courier sees of its worker: the messages it adds up, and the state it can hand over."""

    def begin(self, round: int, lanes: tuple[int, ...]) -> None:
        """Ask for the part of a round over these lanes."""

    @property
    def generation(self) -> int:
        """How many files of buffers the worker has made: with another one, members meet again."""

    def ready(self, seconds: float) -> bool:
        """Whether that part is ready; sleeps until it is, at most for so long."""

    def place(self, round: int, way: Way, look: Callable[[], None]) -> None:
        """Have the part where the group sums, on the device or in the buffer."""

    def placed(self, round: int, where: Where) -> None:
        """The total of a round is there."""

    def take_total(self, round: int, total: npt.NDArray[np.generic]) -> None:
        """Take the total of a round from another member."""

    def exported(self, round: int) -> npt.NDArray[np.generic]:
        """The total of a round in the buffer, wherever it was."""

    def read(self, total: npt.NDArray[np.generic]) -> Total:
        """The footer of a total."""

    def state(self, round: int, *, on_device: bool = False) -> Bytes | None:
        """The state after a round, to give to another worker; its arrays may stay on the device for that.

        None if the worker is within a step then.
        """

    def adopt(self, round: int, state: Bytes) -> None:
        """Take over another worker's state after a round."""

    def fetch(self, rank: int) -> None:
        """The same from a worker whose memory is on this host; `Failure` if it is gone."""

    def hello(self) -> Hello:
        """What the other members must know of this one."""


def position() -> int:
    """The position of this courier in the world that mpirun started."""
    return MPI.COMM_WORLD.Get_rank()


def size() -> int:
    """How many couriers that world has."""
    return MPI.COMM_WORLD.Get_size()


class Mpi:
    """One courier's place in the group."""

    def __init__(self, worker: WorkerPort, lanes: int, over: Callable[[], bool] = lambda: False) -> None:
        self.worker = worker
        self.lanes = lanes
        self.over = over
        self.transport: Transport | None = None
        """The one of the group whose members have met: `known`."""
        self.known: MPI.Comm | None = None
        self.met = 0
        """The generation of the worker's buffers then."""
        self.past: list[Transport] = []
        self.latest = -1
        self.world: MPI.Comm = MPI.COMM_WORLD
        self.world.Set_errhandler(MPI.ERRORS_RETURN)
        self.active: MPI.Comm = self.world

    def drive(
        self,
        steps: Generator[Any, Any, Any],
        before: Callable[[Any], None] = lambda _: None,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """Run a member to its end, also one of a sharded job; `before` sees each operation first (tests kill there)."""
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
                began = time.monotonic()
                while not self.worker.ready(max(EXIT_POLL, min((time.monotonic() - began) / 8, EXIT_REST))):
                    self.look()
            case Reduce(round=current):
                return self.reduce(current)
            case Wait():
                while not self.over():
                    self.look()
                    time.sleep(EXIT_POLL)
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
                return self.cast(operation)
            case Enlist(active=active):
                self.enlist(active)
        return None

    def look(self) -> None:
        """Fail here if the group is revoked or a member is dead, before a collective would."""
        self.world.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        if self.world.Is_revoked():
            raise MPI.Exception(MPI.ERR_REVOKED)
        dead = self.world.Get_failed()
        count = dead.Get_size()
        dead.Free()
        if count:
            raise MPI.Exception(MPI.ERR_PROC_FAILED)

    def reduce(self, current: Round) -> Total:
        """Run the collective of a round, from the parts to this round's own buffer."""
        if self.transport is None or self.known is not self.active or self.met != self.worker.generation:
            self.transport = self.meet()
        if not self.transport.piecewise:
            self.worker.complete(self.worker.wire.size, self.look)
        self.worker.place(current.number, self.transport.way, self.look)
        match current.collective:
            case Collective.ALL_REDUCE:
                self.transport.all_reduce(current.number)
            case Collective.REDUCE_SCATTER_ALL_GATHER:
                self.transport.reduce_scatter(current.number)
                self.transport.all_gather(current.number)
        self.worker.placed(current.number, self.transport.where)
        return self.worker.read(self.worker.total(current.number))

    def meet(self) -> Transport:
        """Once per group, before its first round: learn who is in it, and choose the way that sums take."""
        self.met = self.worker.generation
        found = choose(Group(self.active, self.hellos(self.active), self.active.Get_rank(), self.worker, self.look))
        if self.transport is not None:
            self.past.append(self.transport)
        self.known = self.active
        return found

    def hellos(self, comm: MPI.Comm) -> list[Hello]:
        """What every member says of itself, in order of positions."""
        mine = self.worker.hello().numbers()
        every = np.empty((comm.Get_size(), len(mine)), np.int64)
        patient(comm.Iallgather(mine, every))
        return [Hello(*row) for row in every.tolist()]

    def gather(self, record: Record) -> list[Record]:
        """Everyone's record, as numbers: its fields, and then a flag for each lane."""
        epoch = record.attempt, record.world, record.shrink
        groups = *record.made_by, *record.group
        fields = [record.rank, record.done, record.active, record.fresh, record.origin, *epoch, *groups]
        flags = np.zeros(self.lanes, np.int64)
        flags[list(record.lanes)] = 1
        mine = np.array([*fields, *flags], np.int64)
        every = np.empty((self.world.Get_size(), len(mine)), np.int64)
        patient(self.world.Iallgather(mine, every))
        found = []
        for row in every:
            rank, done, active, fresh, origin, attempt, world, shrink, *groups = row[: len(fields)].tolist()
            lanes = tuple(np.flatnonzero(row[len(fields) :]).tolist())
            made_by, group = (groups[0], groups[1]), (groups[2], groups[3])
            found.append(
                Record(rank, done, bool(active), lanes, bool(fresh), origin, attempt, world, shrink, made_by, group)
            )
        self.latest = max([-1, *(one.done for one in found if one.active)])
        return found

    def cast(self, cast: Cast) -> bool:
        """Send the last total or the state from one member to those that lack it; the others let it pass.

        Returns whether there is no state to send, since its worker is within a step.
        """
        here = self.world.Get_rank() == cast.source
        data: Bytes | None = np.empty(0, np.uint8)
        if cast.what is Payload.STATE:
            hellos = self.hellos(self.world)
            if len({hello.host for hello in hellos}) == 1:
                return self.hand_over(cast, hellos)
        if here and cast.what is Payload.TOTAL:
            data = self.worker.exported(self.latest).view(np.uint8)
        elif here:
            data = self.worker.state(self.latest)
        size = np.array([NO_STATE if data is None else len(data)], np.int64)
        patient(self.world.Ibcast(size, cast.source))
        if size[0] == NO_STATE:
            return True
        if not here or data is None:
            data = np.empty(int(size[0]), np.uint8)
        for begin in range(0, len(data), PIECE):
            self.world.Bcast(data[begin : begin + PIECE], cast.source)
        if cast.take and cast.what is Payload.TOTAL:
            self.worker.take_total(self.latest, data)
        elif cast.take:
            self.worker.adopt(self.latest, data)
        return False

    def hand_over(self, cast: Cast, hellos: list[Hello]) -> bool:
        """Give the state to members of this host: in device memory where all of them have that, or as a file.

        Returns whether there is none to give.
        """
        here, kinds = self.world.Get_rank() == cast.source, {hello.state_device for hello in hellos}
        for on_device in (True, False) if len(kinds) == 1 and kinds != {0} else (False,):
            midway = np.zeros(1, np.int64)
            if here:
                midway[:] = self.worker.state(self.latest, on_device=on_device) is None
            patient(self.world.Ibcast(midway, cast.source))  # when it is there, or never will be
            if midway[0]:
                return True
            if cast.take:
                self.worker.fetch(hellos[cast.source].rank)
            if not on_device:
                return False
            took = self.worker.use_worker(Task.TAKE, self.latest, self.look) if cast.take else Outcome.DONE
            everybody = least(self.world, took)
            if here:
                self.worker.use_worker(Task.RELEASE, self.latest, self.look)
            if everybody is Outcome.DONE:
                return False
        return False

    def enlist(self, active: tuple[int, ...]) -> None:
        """Give the active members a group of their own; all get it or none, so that no member waits for one without."""
        if len(active) == self.world.Get_size():
            patient(self.world.Ibarrier())  # nobody goes on before all know who the members are: see `recovery.py`
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
