"""A worker's sums in device memory: the requests of its courier, which has no device, and where totals come from.

`totals.py` has how a total is made. Mappings of former members are dropped with the next round's total.

A total is read by the device while the worker goes on. What that reads may only count when it is known that nobody had
begun to write something else there: `settle` says so, at the latest when the worker commits.

The courier's requests are served by the thread that hears the doorbell; totals are taken by the main thread.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from meshmend.job.device.base import Memory
from meshmend.job.device.mapped_blocks import MappedBlocks
from meshmend.job.device.own_block import OwnBlock
from meshmend.job.device.totals import DeviceTotals, Made
from meshmend.job.reduction.base import WireFormat, slices
from meshmend.job.reduction.exact import ExactResult
from meshmend.job.reduction.packing import Addresses, Packing
from meshmend.job.shm.mailbox import WorkerSide
from meshmend.job.shm.marks import membership
from meshmend.job.shm.records import DeviceWanted, Outcome, Task
from meshmend.job.shm.segment import WorkerSegment


class DeviceSums:
    """The device memory of one worker, and of the members that it sums with."""

    def __init__(self, segment: WorkerSegment, memory: Memory, *, staged: bool) -> None:
        self._segment, self.memory = segment, memory
        self._side = WorkerSide(segment)
        self._lock = threading.Lock()
        """Guards what is mapped. A thread that holds it may wait for other workers, which wait for this one's block."""
        self.own = OwnBlock(segment, memory, staged=staged)
        self._others = MappedBlocks(segment, memory)
        self._totals = DeviceTotals(memory, self.own, self._others)
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
            self._totals.forget()
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
                self._totals.forget(after=self._segment.courier.done)
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
        made, layout = self._totals.next, self.own.layout
        group = made.group
        if not group:
            return Outcome.GONE
        mine = slices(0, layout.size, len(group))[group.index(self._others.own)]
        parts = [layout.part(self._totals.block_of(who), round, mine.start) for who in group]
        out = self.own.add_to(round, made.membership, mine.start)
        self.memory.add(layout.wire, parts, out, mine.start, mine.stop - mine.start)
        self.memory.finish()
        self._totals.note(round, made)
        return Outcome.DONE

    def _export(self, round: int) -> Outcome:
        """Copy a total to the host; a total of other buffers was not a sum.

        `Overtaken` if that cannot be had any more: those that ask have repeated the round among themselves.
        """
        made = self._totals.how(round)
        if made.group:
            self._totals.download(round, made, self._segment.buffers.total(round))
            self._totals.check(round, made)
        return Outcome.DONE

    # totals

    def unpack(
        self, round: int, packing: Packing, leaves: Addresses, *, check: bool, soon: Sequence[int] = ()
    ) -> ExactResult | None:
        """Start to write the total of a round that is done to leaves; see `Packing.unpack`, and `settle`."""
        with self._lock:
            self._settle()
            made = self._totals.how(round)
            places, sliced = self._totals.places(round, made)
            against = packing.unpack(places, leaves, sliced=sliced, check=check, soon=soon)
            self._reading = round, made
            if against is not None:
                self._settle()  # nobody may hear of it if it was not the total
            self._totals.note(round, made)
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
            self._totals.check(round, made)

    def take(self, round: int) -> Any:
        """The total of a round that is done, in one piece, where the framework wants it."""
        with self._lock:
            self._settle()
            made, host = self._totals.how(round), self.own.host
            if host is not None:
                self._totals.download(round, made, host)
            else:
                self._totals.gather(round, made)
            self._totals.taken(round, made)
            return host if host is not None else self.own.view(self.own.layout.total(self.own.block, round))

    def release(self) -> None:
        """Release the others' memory after a round that was summed elsewhere."""
        with self._lock:
            self._settle()
            self._others.keep()
