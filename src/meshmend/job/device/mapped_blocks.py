"""The blocks of device memory that a worker has mapped: those of the members that it sums with.

A block stays as long as any process has it mapped, even when its owner is dead. So a mapping is dropped only when no
total in it can be needed any more. `DeviceSums` has the lock for all of this: two threads use it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from meshmend.errors import DeviceError, JobError
from meshmend.job.device.base import Block, Memory
from meshmend.job.device.passing import fetch
from meshmend.job.shm.marks import mark, of_part, of_total
from meshmend.job.shm.records import Outcome
from meshmend.job.shm.segment import Segment, WorkerSegment, open_to_read

Who = tuple[int, int]
"""(rank, birth) of a member."""


@dataclass(frozen=True)
class Neighbour:
    """A member's block, mapped here."""

    block: Block
    generation: int
    segment: Segment


class MappedBlocks:
    """The other members' memory that one worker has mapped."""

    def __init__(self, segment: WorkerSegment, memory: Memory) -> None:
        self._segment, self._memory = segment, memory
        self._mapped: dict[Who, Neighbour] = {}
        self.group: tuple[Who, ...] = ()
        """The members whose memory was last requested, itself included; empty if one of them is not mapped."""
        self.membership = 0
        """The number of that group (`marks.py`)."""
        self.why = ""
        """Why the memory of another member could not be mapped; "" if it could."""

    @property
    def own(self) -> Who:
        """Who this is."""
        return self._segment.rank, self._segment.birth

    def block(self, who: Who) -> Block:
        """The block of another member."""
        return self._mapped[who].block

    def map(self, members: tuple[Who, ...], nbytes: int, membership: int) -> Outcome:
        """Map the blocks, of this many bytes, of all members that are not mapped yet."""
        self.why = ""
        if self.own not in members:
            return Outcome.GONE
        for who in members:
            try:
                if who != self.own and not self._reach(who, nbytes):
                    return Outcome.GONE
            except DeviceError as error:
                self.why = str(error)
                return Outcome.CANNOT
        self.group, self.membership = members, membership
        return Outcome.DONE

    def forget(self) -> None:
        """Other buffers have been made here: the group meets again before it sums in them."""
        self.group = ()

    def _reach(self, who: Who, nbytes: int) -> bool:
        """Have a member's block mapped; False if it is dead."""
        rank, birth = who
        try:
            segment = open_to_read(self._segment.run, rank)
        except (JobError, OSError):
            return False
        before = self._mapped.get(who)
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
            if (about.kind, about.nbytes) != (self._memory.number, nbytes):
                raise DeviceError(f"rank {rank} has device memory of a different kind or size")
            block = self._memory.attach(file, about.nbytes)
        finally:
            os.close(file)
        self._drop(who)
        self._mapped[who] = Neighbour(block, about.generation, segment)
        return True

    def overtaken(self, group: Iterable[Who], round: int, membership: int, *, totals: int) -> bool:
        """Whether a member has begun to put something else in the place of this round's part, or of its total.

        `totals`: how many each has; 0 asks about parts.
        """
        ours = mark(round, membership)
        workers = [self._mapped[who].segment.worker for who in group if who != self.own]
        return any((of_total(one, round % totals) if totals else of_part(one, round % 2)) > ours for one in workers)

    def keep(self, group: tuple[Who, ...] = ()) -> None:
        """Drop the mappings of all others."""
        for who in [who for who in self._mapped if who not in group]:
            self._drop(who)

    def _drop(self, who: Who) -> None:
        if who in self._mapped:
            self._mapped.pop(who).block.close()
            if who in self.group:
                self.group = ()
