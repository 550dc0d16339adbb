"""A worker's sums in device memory: the requests of its courier, which has no device, and where totals come from.

In a small group (`is_direct`), a round is done when all parts are there: each member adds them up by itself. In a
larger one, as through the host's memory, each member first adds up one slice of all parts into its own total, and then
takes the other slices from the totals of the others. It needs nobody for that, not even a member that is dead by then:
its memory stays as long as it is mapped here (`mapped_blocks.py`). Mappings of former members are dropped with the next
round's total.

A total is read by the device while the worker goes on. What that reads may only count when it is known that nobody had
begun to write something else there: `settle` says so, at the latest when the worker commits.

The courier's requests are served by the thread that hears the doorbell; totals are taken by the main thread.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

from meshmend.job.device.base import Block, Memory, Place
from meshmend.job.device.block_layout import is_direct
from meshmend.job.device.mapped_blocks import MappedBlocks, Who
from meshmend.job.device.own_block import OwnBlock
from meshmend.job.reduction.base import WireFormat, slices
from meshmend.job.reduction.exact import ExactResult
from meshmend.job.reduction.packing import Addresses, Packing
from meshmend.job.shm.mailbox import WorkerSide
from meshmend.job.shm.marks import membership
from meshmend.job.shm.records import DeviceWanted, Outcome, Task
from meshmend.job.shm.segment import WorkerSegment
from meshmend.job.shm.sliced import Overtaken


class Made(NamedTuple):
    """How a total was made."""

    group: tuple[Who, ...]
    """By whom; empty if it was not made here."""
    membership: int = 0
    """The number of that group."""

    @property
    def direct(self) -> bool:
        """Whether each member adds up all parts."""
        return is_direct(len(self.group))


class DeviceSums:
    """The device memory of one worker, and of the members that it sums with."""

    def __init__(self, segment: WorkerSegment, memory: Memory, *, staged: bool) -> None:
        self._segment, self.memory = segment, memory
        self._side = WorkerSide(segment)
        self._lock = threading.Lock()
        """Guards what is mapped. A thread that holds it may wait for other workers, which wait for this one's block."""
        self.own = OwnBlock(segment, memory, staged=staged)
        self._others = MappedBlocks(segment, memory)
        self._made: dict[int, Made] = {}
        """For the last two rounds, if totals were taken, or slices added up: another group may have met since."""
        self._reading: tuple[int, Made] | None = None
        """The round whose total the device may still be reading, and how that is made; see `settle`."""

    @property
    def why(self) -> str:
        """Why the memory of another member could not be mapped; "" if it could."""
        return self._others.why

    def make(self, wire: WireFormat, size: int) -> None:
        """Have room for messages of this format, of which the first `size` numbers are summed here."""
        with self._lock:
            self._settle()
            self._made = {}
            self._others.forget()
            self.own.make(wire, size)

    def use(self, wire: WireFormat) -> None:
        """The next message has this head; there is room for it."""
        with self._lock:
            self.own.use(wire)

    def close(self) -> None:
        """Release everything."""
        with self._lock:
            if self._reading is not None:
                self._reading = None
                self.memory.finish()
            self._others.keep()
            self.own.close()

    # the courier's requests

    def serve(self) -> None:
        """Carry out the courier's request, if there is one."""
        request = self._side.device_request()
        if request is not None:
            with self._lock:
                self._side.answer_device(request, self._done(request.body))

    def _done(self, wanted: DeviceWanted) -> Outcome:
        over = wanted.round != self._segment.courier.done + 1
        match wanted.task:
            case Task.MAP:
                self._settle()
                members = tuple(zip(wanted.members[::2], wanted.members[1::2], strict=False))
                done = self._segment.courier.done
                self._made = {number: made for number, made in self._made.items() if number <= done}
                return self._others.map(members, self.own.block.nbytes, membership(self._segment.courier))
            case Task.ADD:
                return Outcome.GONE if over else self._add(wanted.round)
            case Task.LOWER:
                self.own.lower(wanted.round)
            case Task.RAISE:
                self.own.lift(wanted.round)
            case Task.EXPORT:
                return self._export(wanted.round)
        return Outcome.DONE

    def _add(self, round: int) -> Outcome:
        """Add up this member's slice of all parts."""
        made, layout = Made(self._others.group, self._others.membership), self.own.layout
        group = made.group
        if not group:
            return Outcome.GONE
        mine = slices(0, layout.size, len(group))[group.index(self._others.own)]
        parts = [layout.part(self._block_of(who), round, mine.start) for who in group]
        out = self.own.add_to(round, made.membership, mine.start)
        self.memory.add(layout.wire, parts, out, mine.start, mine.stop - mine.start)
        self.memory.finish()
        self._note(round, made)
        return Outcome.DONE

    def _note(self, round: int, made: Made) -> None:
        self._made = {number: before for number, before in self._made.items() if number == round - 1}
        self._made[round] = made

    def _export(self, round: int) -> Outcome:
        """Copy a total to the host; a total of other buffers was not a sum.

        `Overtaken` if that cannot be had any more: those that ask have repeated the round among themselves.
        """
        made = self._how(round)
        if made.group:
            self._download(round, made, self._segment.buffers.total(round))
            self._check(round, made)
        return Outcome.DONE

    # totals

    def unpack(
        self, round: int, packing: Packing, leaves: Addresses, *, check: bool, soon: Sequence[int] = ()
    ) -> ExactResult | None:
        """Start to write the total of a round that is done to leaves; see `Packing.unpack`, and `settle`."""
        with self._lock:
            self._settle()
            made = self._how(round)
            places, sliced = self._places(round, made)
            against = packing.unpack(places, leaves, sliced=sliced, check=check, soon=soon)
            self._reading = round, made
            if against is not None:
                self._settle()  # nobody may hear of it if it was not the total
            self._note(round, made)
            self._others.keep(made.group)
            return against

    def settle(self) -> None:
        """Wait until the device has read the last total, and make sure that it was still there, or `Overtaken`.

        Before that, nothing may be said of what was made of it: not that a state is final, nor its digest.
        """
        if self._reading is not None:
            with self._lock:
                self._settle()

    def _settle(self) -> None:
        if self._reading is not None:
            (round, made), self._reading = self._reading, None
            self.memory.finish()
            self._check(round, made)

    def take(self, round: int) -> Any:
        """The total of a round that is done, in one piece, where the framework wants it."""
        with self._lock:
            self._settle()
            made, host = self._how(round), self.own.host
            if host is not None:
                self._download(round, made, host)
            else:
                self._gather(round, made)
            self._taken(round, made)
            return host if host is not None else self.own.view(self.own.layout.total(self.own.block, round))

    def release(self) -> None:
        """Release the others' memory after a round that was summed elsewhere."""
        with self._lock:
            self._settle()
            self._others.keep()

    def _how(self, round: int) -> Made:
        """How the total of a round is made: another group meets only after this one's has been taken."""
        made = Made(self._others.group, self._others.membership)
        return self._made.get(round, made if made.direct else Made(()))

    def _block_of(self, who: Who) -> Block:
        return self.own.block if who == self._others.own else self._others.block(who)

    def _places(self, round: int, made: Made) -> tuple[Sequence[Place], int]:
        """The parts to be added up, and 0; or the totals, and how many numbers their slices divide."""
        blocks, layout = [self._block_of(who) for who in made.group], self.own.layout
        if made.direct:
            return [layout.part(block, round) for block in blocks], 0
        return [layout.total(block, round) for block in blocks], layout.size

    def _gather(self, round: int, made: Made) -> None:
        """Have the whole total in this worker's own block."""
        places, sliced = self._places(round, made)
        own, layout, total = self.own.block, self.own.layout, self.own.layout.total(self.own.block, round)
        if not sliced:
            self.memory.add(layout.wire, places, total, 0, layout.size)
        for (block, begin), one in zip(places, slices(0, sliced, len(places)), strict=True) if sliced else ():
            if block is not own:
                at, nbytes = layout.bytes_of(one.start), layout.bytes_of(one.stop - one.start)
                self.memory.copy((own, total[1] + at), (block, begin + at), nbytes)
        self.memory.finish()

    def _download(self, round: int, made: Made, out: npt.NDArray[Any]) -> None:
        self._gather(round, made)
        self.memory.download(self.own.layout.total(self.own.block, round), out[: self.own.layout.size])
        self.memory.finish()

    def _check(self, round: int, made: Made) -> None:
        """What has been read was still there; or `Overtaken`."""
        totals = 0 if made.direct else self.own.layout.totals
        if self._others.overtaken(made.group, round, made.membership, totals=totals):
            raise Overtaken

    def _taken(self, round: int, made: Made) -> None:
        """The total has been read: was it still there? And drop the mappings of former members."""
        self._check(round, made)
        self._note(round, made)
        self._others.keep(made.group)
