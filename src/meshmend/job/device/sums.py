"""A worker's sums in device memory: what its courier, which has no device, asks it to do, and where totals come from.

    block   │ part │ total of even rounds │ total of odd rounds │        one per worker, mapped by all members

As through the host's memory, each member adds up one slice of all parts into its own total, and takes the other slices
from the totals of the others. It takes them by itself when the round is done, also those of a member that is dead by
then: its memory stays as long as it is mapped here. Mappings of former members are dropped with the next round's total.

The courier's requests are served by the thread that hears the doorbell; totals are taken by the main thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshmend.errors import DeviceError, JobError
from meshmend.job.device.base import Block, Memory, Place
from meshmend.job.device.passing import About, Offer, fetch
from meshmend.job.protocol import NEVER
from meshmend.job.reduction.base import WireFormat, slices
from meshmend.job.shm.mailbox import WorkerSide
from meshmend.job.shm.records import DeviceWanted, Outcome, Task
from meshmend.job.shm.segment import Segment, WorkerSegment, open_to_read

ALIGNED = 512
"""Bytes that every part and total begins on a multiple of."""

Who = tuple[int, int]
"""(rank, birth) of a member."""


class Overtaken(Exception):
    """The others have gone on without this worker, and their device memory holds later totals already."""


@dataclass(frozen=True)
class Neighbour:
    """A member's block, mapped here."""

    block: Block
    generation: int
    segment: Segment


class DeviceSums:
    """The device memory of one worker, and of those that it sums with."""

    def __init__(self, segment: WorkerSegment, memory: Memory, *, staged: bool) -> None:
        self._segment, self.memory = segment, memory
        self._side = WorkerSide(segment)
        self._lock = threading.Lock()
        """For what is mapped. A thread that has it may wait for other workers, who then wait for this one's block."""
        self._making = threading.Lock()
        """For this worker's own block; never held for long."""
        self._staged = staged
        """Whether parts and totals go through the host, because the framework's sums are there."""
        self._block: Block | None = None
        self._neighbours: dict[Who, Neighbour] = {}
        self._group: tuple[Who, ...] = ()
        """The members whose memory was asked for last."""
        self._made: dict[int, tuple[Who, ...]] = {}
        """By whom the total of a round was made; those of the last two rounds."""
        self._why = ""
        self._offer: Offer | None = None

    @property
    def own(self) -> Who:
        """Who this is."""
        return self._segment.rank, self._segment.birth

    @property
    def why(self) -> str:
        """Why the memory of another member could not be mapped; "" if it could."""
        return self._why

    # the worker's own memory

    def make(self, wire: WireFormat, size: int) -> None:
        """Have room for messages of this format, of which the first `size` numbers are summed here."""
        with self._lock, self._making:
            if self._block is not None:
                self._block.close()
                self._block = None
            self._wire, self._size = wire, size
            self._stride = -(-size * wire.kind.dtype.itemsize // ALIGNED) * ALIGNED
            self._made = {}
            self._segment.worker.adding = NEVER  # who has the old block mapped keeps its totals
            self._block = self.memory.allocate(3 * self._stride)
            self._host = np.zeros(size, wire.kind.dtype) if self._staged else None
        if self._offer is None:
            self._offer = Offer(self._segment.files.folder, self._segment.rank, self._describe)

    def close(self) -> None:
        """Give everything back; who has this worker's block mapped keeps it."""
        if self._offer is not None:
            self._offer.close()
            self._offer = None
        with self._lock, self._making:
            self._drop(list(self._neighbours))
            if self._block is not None:
                self._block.close()
                self._block = None

    def _describe(self) -> tuple[About, int] | None:
        with self._making:
            if self._block is None:
                return None
            about = About(self._segment.birth, self._segment.worker.generation, self.memory.number, self._block.nbytes)
            return about, self._block.export()

    @property
    def part(self) -> Any:
        """Where the framework puts this worker's part."""
        return self._host if self._host is not None else self._view(self._part(self._own_block))

    def publish(self) -> None:
        """The part is whole: have it complete on the device before anybody is told so."""
        if self._host is not None:
            self.memory.upload(self._host, self._part(self._own_block))
        self.memory.finish(everything=True)

    def zero(self) -> None:
        """Bring nothing."""
        self.memory.zero(self._part(self._own_block), self._nbytes(self._size))
        self.memory.finish()

    # what the courier asks for

    def serve(self) -> None:
        """Do what the courier has asked for, if it has."""
        request = self._side.device_request()
        if request is not None:
            with self._lock:
                self._side.answer_device(request, self._done(request.body))

    def _done(self, wanted: DeviceWanted) -> Outcome:
        over = wanted.round != self._segment.courier.done + 1
        match wanted.task:
            case Task.MAP:
                return self._map(tuple(zip(wanted.members[::2], wanted.members[1::2], strict=False)))
            case Task.ADD:
                return Outcome.GONE if over else self._add(wanted.round)
            case Task.LOWER:
                self.memory.download(self._part(self._own_block), self._segment.buffers.part[: self._size])
            case Task.RAISE:
                self.memory.upload(self._segment.buffers.part[: self._size], self._part(self._own_block))
            case Task.EXPORT:
                return self._export(wanted.round)
        self.memory.finish()
        return Outcome.DONE

    def _map(self, members: tuple[Who, ...]) -> Outcome:
        """Map the memory of all members that are not mapped yet."""
        self._why = ""
        if self.own not in members:
            return Outcome.GONE
        for who in members:
            try:
                if who != self.own and not self._reach(who):
                    return Outcome.GONE
            except DeviceError as error:
                self._why = str(error)
                return Outcome.CANNOT
        self._group = members
        return Outcome.DONE

    def _reach(self, who: Who) -> bool:
        """Have a member's memory mapped; False if it is dead."""
        rank, birth = who
        try:
            segment = open_to_read(self._segment.run, rank)
        except (JobError, OSError):
            return False
        before = self._neighbours.get(who)
        if segment.birth != birth:
            return False
        if before is not None and before.generation == segment.worker.generation:
            return True
        process = segment.agent.worker
        found = fetch(self._segment.files.folder, rank, lambda: process.visible and process.exiting)
        if found is None:
            return False
        about, file = found
        try:
            if (about.birth, about.generation) != (birth, segment.worker.generation):
                return False  # another worker has the rank by now
            if (about.kind, about.nbytes) != (self.memory.number, self._own_block.nbytes):
                raise DeviceError(f"rank {rank} has device memory of another kind or size")
            block = self.memory.attach(file, about.nbytes)
        finally:
            os.close(file)
        self._drop([who])
        self._neighbours[who] = Neighbour(block, about.generation, segment)
        return True

    def _add(self, round: int) -> Outcome:
        """Add up this member's slice of all parts."""
        if not self._group:
            return Outcome.GONE
        self._segment.worker.adding = round
        mine = slices(0, self._size, len(self._group))[self._group.index(self.own)]
        at = self._nbytes(mine.start)
        parts = [_moved(self._part(self._block_of(who)), at) for who in self._group]
        out = _moved(self._total(self._own_block, round), at)
        self.memory.add(self._wire, parts, out, mine.start, mine.stop - mine.start)
        self.memory.finish()
        self._made = {number: group for number, group in self._made.items() if number == round - 1}
        self._made[round] = self._group
        return Outcome.DONE

    def _export(self, round: int) -> Outcome:
        """Copy a total to the host; one of other buffers was nobody's sum."""
        group = self._made.get(round)
        if group is None:
            return Outcome.DONE
        total = self._segment.buffers.total(round)
        for who, one in zip(group, slices(0, self._size, len(group)), strict=True):
            source = _moved(self._total(self._block_of(who), round), self._nbytes(one.start))
            self.memory.download(source, total[one])
        self.memory.finish()
        return Outcome.GONE if self._overtaken(group, round) else Outcome.DONE

    # totals

    def take(self, round: int) -> Any:
        """The total of a round that is done, where the framework wants it."""
        with self._lock:
            group = self._made[round]
            own = self._total(self._own_block, round)
            for who, one in zip(group, slices(0, self._size, len(group)), strict=True):
                if who != self.own:
                    at, size = self._nbytes(one.start), self._nbytes(one.stop - one.start)
                    self.memory.copy(_moved(own, at), _moved(self._total(self._block_of(who), round), at), size)
            if self._host is not None:
                self.memory.finish()
                self.memory.download(own, self._host)
            self.memory.finish()
            if self._overtaken(group, round):
                raise Overtaken
            self._drop([who for who in self._neighbours if who not in group])
            return self._host if self._host is not None else self._view(own)

    def release(self) -> None:
        """A round was summed elsewhere: give back the others' memory."""
        with self._lock:
            self._drop(list(self._neighbours))

    def _overtaken(self, group: tuple[Who, ...], round: int) -> bool:
        """Whether a member has begun to put a later total in the place of this one."""
        return any(self._neighbours[who].segment.worker.adding >= round + 2 for who in group if who != self.own)

    def _drop(self, whom: Sequence[Who]) -> None:
        for who in whom:
            if who in self._neighbours:
                self._neighbours.pop(who).block.close()
                if who in self._group:
                    self._group = ()

    # places

    @property
    def _own_block(self) -> Block:
        assert self._block is not None, "there are no messages yet"
        return self._block

    def _block_of(self, who: Who) -> Block:
        return self._own_block if who == self.own else self._neighbours[who].block

    def _nbytes(self, numbers: int) -> int:
        return numbers * self._wire.kind.dtype.itemsize

    def _part(self, block: Block) -> Place:
        return block, 0

    def _total(self, block: Block, round: int) -> Place:
        return block, (1 + round % 2) * self._stride

    def _view(self, place: Place) -> Any:
        return self.memory.view(place, self._size, self._wire)


def _moved(place: Place, nbytes: int) -> Place:
    return place[0], place[1] + nbytes
