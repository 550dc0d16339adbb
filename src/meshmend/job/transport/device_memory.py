"""Sums of members on one host in the memory of their devices, which they have mapped from each other.

Couriers have no device. In a small group (`is_direct`), they only add up their footers, over MPI: when the sum is
there, so are all parts, the total is certain, and each worker adds the parts up by itself. In a larger one it is the
picture of `shared_memory.py` in other memory: between two barriers a courier has its worker add up its slice, and the
worker takes the other slices by itself; there, every courier adds up all footers, in the memory of the host. (With one
barrier a worker may bring the next footer while another courier still reads the last.)

Who may be killed when:

* a worker, before all have the sum of footers, or passed the first barrier: the survivors, whose parts are still there,
  repeat the round;
* a worker, while it adds up its slice: it writes only to its own memory. Its courier exits, no member passes the second
  barrier, and the same follows;
* a courier whose worker still adds: the next courier's question has another number, so the answer to this one is never
  taken for that one's; the worker handles one request at a time;
* either, after the last barrier: all parts, or all slices, are complete by then, in memory that all members have
  mapped. A member that did not hear of it gets the total from a member that did, over the host's memory (`Cast`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from meshmend.base.processes import cores_to_spare
from meshmend.job.device.block_layout import is_direct
from meshmend.job.protocol import Failure
from meshmend.job.shm.records import MOST_MEMBERS, Outcome, Task, Way, Where
from meshmend.job.transport.base import Buffers, Group, Port, Transport, least, patient


class DeviceMemory(Transport):
    """The members of a group whose device memory is mapped by all of them."""

    way = Way.DEVICE

    def __init__(self, port: Port, buffers: Sequence[Buffers], comm: Any, look: Callable[[], None]) -> None:
        self._port, self._buffers, self._comm, self._look = port, buffers, comm, look
        tail = buffers[0].part[port.tail :]
        self._mine, self._sum = tail.copy(), tail.copy()
        """Footers: this member's, which nothing else writes to, and that of all."""
        self._soon = partial(cores_to_spare, len(buffers))

    @classmethod
    def make(cls, group: Group) -> Transport | None:
        """For members of one host that all have the same kind of device memory and can map each other's."""
        members = group.members
        kinds = {member.device for member in members}
        if group.port.mesh is not None or len({member.host for member in members}) > 1 or len(members) > MOST_MEMBERS:
            return None
        if kinds == {0} or len(kinds) > 1:
            return None
        buffers = group.port.neighbours(members)
        if least(group.comm, group.port.use_worker(Task.MAP, 0, group.look, members)) is Outcome.CANNOT:
            return None

        return cls(group.port, buffers, group.comm, group.look)

    def reduce_scatter(self, round: int) -> None:
        """When all members have their parts: have the worker add up this member's slice."""
        tail, total = slice(self._port.tail, None), self._port.total(round)
        if self._direct:
            self._port.before("add")
            self._mine[:] = self._port.part[tail]
            patient(self._comm.Iallreduce(self._mine, self._sum), self._soon)
            total[tail] = self._sum
            return
        patient(self._comm.Ibarrier(), self._soon)
        self._port.before("add")
        if self._port.use_worker(Task.ADD, round, self._look) is not Outcome.DONE:
            raise Failure
        self._port.wire.combine([buffers.part[tail] for buffers in self._buffers], total[tail], self._port.tail)

    def all_gather(self, round: int) -> None:
        """Do nothing else: workers take the slices of the others, or the parts, by themselves."""
        del round
        if not self._direct:
            patient(self._comm.Ibarrier(), self._soon)
        self._port.before("take")

    @property
    def where(self) -> Where:
        """Workers take it from each other's devices."""
        return Where.DEVICE

    @property
    def _direct(self) -> bool:
        return is_direct(len(self._buffers))
