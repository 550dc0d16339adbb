"""A worker's sums in device memory: the requests of its courier, which has no device, and where totals come from.

As through the host's memory, each member adds up one slice of all parts into its own total, and takes the other slices
from the totals of the others. It takes them by itself when the round is done, even those of a member that is dead by
then: its memory stays as long as it is mapped here (`neighbours.py`). Mappings of former members are dropped with the
next round's total. `block_layout.py` defines the layout of a block.

The courier's requests are served by the thread that hears the doorbell; totals are taken by the main thread.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np

from meshmend.job.device.base import Block, Memory, Place
from meshmend.job.device.block_layout import BlockLayout
from meshmend.job.device.neighbours import Neighbours, Who
from meshmend.job.device.passing import About, Offer
from meshmend.job.protocol import NEVER
from meshmend.job.reduction.base import WireFormat, slices
from meshmend.job.shm.mailbox import WorkerSide
from meshmend.job.shm.records import DeviceWanted, Outcome, Task
from meshmend.job.shm.segment import WorkerSegment


class Overtaken(Exception):
    """The others have continued without this worker, and their device memory already holds later totals."""


class DeviceSums:
    """The device memory of one worker, and of the members that it sums with."""

    def __init__(self, segment: WorkerSegment, memory: Memory, *, staged: bool) -> None:
        self._segment, self.memory = segment, memory
        self._side = WorkerSide(segment)
        self._lock = threading.Lock()
        """Guards what is mapped. A thread that holds it may wait for other workers, which wait for this one's block."""
        self._making = threading.Lock()
        """For this worker's own block; never held for long."""
        self._staged = staged
        """Whether parts and totals go through the host, because the framework's sums are there."""
        self._block: Block | None = None
        self._neighbours = Neighbours(segment, memory)
        self._made: dict[int, tuple[Who, ...]] = {}
        """The members that made the total of a round, for the last two rounds."""
        self._offer: Offer | None = None

    @property
    def own(self) -> Who:
        """Who this is."""
        return self._neighbours.own

    @property
    def why(self) -> str:
        """Why the memory of another member could not be mapped; "" if it could."""
        return self._neighbours.why

    # the worker's own memory

    def make(self, wire: WireFormat, size: int) -> None:
        """Have room for messages of this format, of which the first `size` numbers are summed here."""
        with self._lock, self._making:
            if self._block is not None:
                self._block.close()
                self._block = None
            self._layout = BlockLayout(wire, size)
            self._made = {}
            self._segment.worker.adding = NEVER  # a process that has the old block mapped keeps its totals
            self._block = self.memory.allocate(self._layout.nbytes)
            self._host = np.zeros(size, wire.kind.dtype) if self._staged else None
        if self._offer is None:
            self._offer = Offer(self._segment.files.folder, self._segment.rank, self._describe)

    def close(self) -> None:
        """Release everything; a process that has this worker's block mapped keeps it."""
        if self._offer is not None:
            self._offer.close()
            self._offer = None
        with self._lock, self._making:
            self._neighbours.keep()
            if self._block is not None:
                self._block.close()
                self._block = None

    def _describe(self) -> tuple[About, int] | None:
        with self._making:
            if self._block is None:
                return None
            about = About(self._segment.birth, self._segment.worker.generation, self.memory.number, self._block.nbytes)
            return about, self._block.export()

    def use(self, wire: WireFormat) -> None:
        """The next message has this head; there is room for it."""
        with self._lock:
            self._layout = replace(self._layout, wire=wire)

    @property
    def part(self) -> Any:
        """Where the framework puts this worker's part."""
        return self._host if self._host is not None else self._view(self._layout.part(self._own_block))

    def publish(self) -> None:
        """Finish the part on the device before the courier is told that it is complete."""
        if self._host is not None:
            self.memory.upload(self._host, self._layout.part(self._own_block))
        self.memory.finish(everything=True)

    def zero(self) -> None:
        """Bring nothing."""
        self.memory.zero(self._layout.part(self._own_block), self._layout.bytes_of(self._layout.size))
        self.memory.finish()

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
                members = tuple(zip(wanted.members[::2], wanted.members[1::2], strict=False))
                return self._neighbours.map(members, self._own_block.nbytes)
            case Task.ADD:
                return Outcome.GONE if over else self._add(wanted.round)
            case Task.LOWER:
                self.memory.download(
                    self._layout.part(self._own_block), self._segment.buffers.part[: self._layout.size]
                )
            case Task.RAISE:
                self.memory.upload(self._segment.buffers.part[: self._layout.size], self._layout.part(self._own_block))
            case Task.EXPORT:
                return self._export(wanted.round)
        self.memory.finish()
        return Outcome.DONE

    def _add(self, round: int) -> Outcome:
        """Add up this member's slice of all parts."""
        group, layout = self._neighbours.group, self._layout
        if not group:
            return Outcome.GONE
        self._segment.worker.adding = round
        mine = slices(0, layout.size, len(group))[group.index(self.own)]
        parts = [layout.part(self._block_of(who), mine.start) for who in group]
        out = layout.total(self._own_block, round, mine.start)
        self.memory.add(layout.wire, parts, out, mine.start, mine.stop - mine.start)
        self.memory.finish()
        self._made = {number: made for number, made in self._made.items() if number == round - 1}
        self._made[round] = group
        return Outcome.DONE

    def _export(self, round: int) -> Outcome:
        """Copy a total to the host; a total of other buffers was not a sum."""
        group, layout = self._made.get(round), self._layout
        if group is None:
            return Outcome.DONE
        total = self._segment.buffers.total(round)
        for who, one in zip(group, slices(0, layout.size, len(group)), strict=True):
            self.memory.download(layout.total(self._block_of(who), round, one.start), total[one])
        self.memory.finish()
        return Outcome.GONE if self._neighbours.overtaken(group, round) else Outcome.DONE

    # totals

    def take(self, round: int) -> Any:
        """The total of a round that is done, where the framework wants it."""
        with self._lock:
            group, layout, own = self._made[round], self._layout, self._own_block
            for who, one in zip(group, slices(0, layout.size, len(group)), strict=True):
                if who != self.own:
                    into = layout.total(own, round, one.start)
                    source = layout.total(self._block_of(who), round, one.start)
                    self.memory.copy(into, source, layout.bytes_of(one.stop - one.start))
            total = layout.total(own, round)
            if self._host is not None:
                self.memory.finish()
                self.memory.download(total, self._host)
            self.memory.finish()
            if self._neighbours.overtaken(group, round):
                raise Overtaken
            self._neighbours.keep(group)
            return self._host if self._host is not None else self._view(total)

    def release(self) -> None:
        """Release the others' memory after a round that was summed elsewhere."""
        with self._lock:
            self._neighbours.keep()

    # places

    @property
    def _own_block(self) -> Block:
        assert self._block is not None, "there are no messages yet"
        return self._block

    def _block_of(self, who: Who) -> Block:
        return self._own_block if who == self.own else self._neighbours.block(who)

    def _view(self, place: Place) -> Any:
        return self.memory.view(place, self._layout.size, self._layout.wire)
