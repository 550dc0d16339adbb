"""What a transport is: the way that the members of one group turn their parts into totals.

    reduce_scatter   every member gets the sum of its own slice of the message, in its total
    all_gather       every member gets the other members' slices
    all_reduce       both, or something quicker

A transport belongs to one group and is never used again after a failure. Even so it must outlive the group: messages in
flight may still arrive in its memory. It must itself wait for the other members at the right moments. If a member has
died or the group was revoked, it raises `Failure` or MPI's own exception.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from meshmend.base.clocks import PEER_POLL, SPIN
from meshmend.base.waiting import spin
from meshmend.job.protocol import Failure
from meshmend.job.reduction.base import WireFormat
from meshmend.job.reduction.base import slices as slices
from meshmend.job.shm.records import Outcome, Task, Way, Where

PIECE = 1 << 20
"""Bytes of one MPI call: with larger ones, Open MPI's ULFM has crashed in a failure."""

Numbers = npt.NDArray[np.generic]


class Buffers(Protocol):
    """A worker's messages in shared memory: its own, or those of a neighbour on the same host."""

    @property
    def wire(self) -> WireFormat:
        """The format of its messages."""

    @property
    def used(self) -> int:
        """How many of the numbers before the footer belong to the current sum."""

    @property
    def part(self) -> Numbers:
        """What this worker brings to the current round, footer included."""

    def has(self, numbers: int) -> bool:
        """Whether this many numbers of the part have arrived: a device may still be copying the rest."""

    def total(self, round: int) -> Numbers:
        """Return the buffer for the total of a round; that of the previous round stays as it is."""


@dataclass(frozen=True)
class Hello:
    """What every member of a new group sends the others about itself."""

    rank: int
    host: int
    """The same number for all members that can map each other's memory."""
    layout: int = 0
    """Differs where the gradients have other leaves, shapes or types."""
    born: int = 0
    """Which worker of that rank it is: a dead worker may be replaced within milliseconds."""
    links_down: int = 0
    """A bit for each link of its chip that is down, where the workers are chips of a mesh."""
    device: int = 0
    """The number of its kind of device memory (`device/base.py`); 0 if it has none."""
    state_device: int = 0
    """The same for the memory in which it can lend its state to another worker."""

    def numbers(self) -> npt.NDArray[np.int64]:
        """As it is sent."""
        return np.array(astuple(self), np.int64)


class Request(Protocol):
    """A pending MPI operation."""

    def Test(self) -> bool:  # noqa: N802
        """Whether it is complete."""


class Port(Buffers, Protocol):
    """A courier's own worker, as its transport sees it."""

    @property
    def mesh(self) -> MeshPlans | None:
        """Plans for the mesh that the workers are chips of, if they are."""

    def neighbours(self, members: Sequence[Hello]) -> Sequence[Buffers]:
        """The messages of these members, all of this host, own ones included; `Failure` if one has died."""

    def begun(self, round: int) -> bool:
        """Whether the couriers of all these neighbours have come to the sum of a round."""

    def nap(self, seconds: float) -> None:
        """Sleep until they have, at most for so long."""

    def complete(self, numbers: int, look: Callable[[], None] = lambda: None) -> None:
        """Wait until this many numbers of the part have arrived."""

    def gathered(self, numbers: int) -> None:
        """Publish that this many numbers of the total are ready; 0 begins another attempt at it."""

    def spent(self, seconds: float) -> None:
        """Report how long adding and copying took for a total, without waiting for others."""

    @property
    def tail(self) -> int:
        """Where the footer begins: what is before it may be in device memory instead."""

    @property
    def several(self) -> bool:
        """Whether steps have several sums, which need not be of one size; the same on all members."""

    def use_worker(self, task: Task, round: int, look: Callable[[], None], members: Sequence[Hello] = ()) -> Outcome:
        """Have the worker do something with its device, or with the members' memory, and wait for that."""

    def before(self, point: str) -> None:
        """Called before each phase of a sum: tests kill there."""


class MeshPlans(Protocol):
    """Makes transports over the links of a mesh; see `mesh_mpi.py`."""

    halfway: Callable[[], None]
    """Called when half of what comes over the links has arrived: tests kill there."""

    def transport(self, group: Group) -> Transport | None:
        """A transport over the links that are up; None where the mesh is disconnected."""

    def links_down(self) -> int:
        """A bit for each link of this courier's own chip that is down."""


@dataclass(frozen=True)
class Group:
    """The members whose parts are added up, as one of them sees it."""

    comm: Any
    """Their MPI communicator."""
    members: Sequence[Hello]
    """In order of positions."""
    position: int
    """This member's."""
    port: Port
    look: Callable[[], None]
    """Raises if a member has died or the group was revoked; to be called while waiting."""


class Transport(ABC):
    """The way that sums take in one group."""

    way: ClassVar[Way]
    """Where its sums take place; with `Way.DEVICE`, parts are in device memory."""
    piecewise: ClassVar[bool] = False
    """Whether it waits for the pieces of parts by itself; otherwise parts are complete before it begins."""

    @classmethod
    @abstractmethod
    def make(cls, group: Group) -> Transport | None:
        """Return a transport of this kind for a group; None if it cannot serve that group."""

    @property
    def where(self) -> Where:
        """Where `all_gather` leaves the total."""
        return Where.BUFFER

    @abstractmethod
    def reduce_scatter(self, round: int) -> None:
        """Fill this member's slice of its total of a round."""

    @abstractmethod
    def all_gather(self, round: int) -> None:
        """Fill the other members' slices."""

    def all_reduce(self, round: int) -> None:
        """Fill the whole total."""
        self.reduce_scatter(round)
        self.all_gather(round)


def least(comm: Any, own: Outcome) -> Outcome:
    """The least of all members' outcomes, so that all do the same; `Failure` where one of them found another dead."""
    every = np.empty(comm.Get_size(), np.int64)
    patient(comm.Iallgather(np.array([own], np.int64), every))
    found = Outcome(int(every.min()))
    if found is Outcome.GONE:
        raise Failure
    return found


def patient(
    request: Request, soon: Callable[[], bool] = lambda: False, nap: Callable[[float], None] | None = None
) -> None:
    """Wait for the other members without taking the processor from workers that still compute.

    `soon` says that it can only be a moment, since all members have come so far: any sleep would take longer than that.
    `nap` sleeps until then, at most for so many seconds; without it, we have to look often.
    """
    polls, spun = 0, False
    while not request.Test():
        if not spun and soon():
            spun = True
            if spin(request.Test, SPIN):
                return
        polls += 1
        if nap is not None and not spun:
            nap(PEER_POLL)
        else:
            time.sleep(0 if polls < 50 else PEER_POLL / 5 if polls < 500 else PEER_POLL)
