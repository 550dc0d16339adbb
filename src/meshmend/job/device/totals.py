"""Where the totals of the last two rounds come from: from whose blocks, and added up by whom.

In a small group (`is_direct`), a round is done when all parts are there: each member adds them up by itself. In a
larger one, each member first adds up one slice of all parts into its own total, and then takes the other slices from
the totals of the others. It needs nobody for that, not even a member that is dead by then: its memory stays as long as
it is mapped here (`mapped_blocks.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

from meshmend.job.device.base import Block, Memory, Place
from meshmend.job.device.block_layout import is_direct
from meshmend.job.device.mapped_blocks import MappedBlocks, Who
from meshmend.job.device.own_block import OwnBlock
from meshmend.job.reduction.base import slices
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


class DeviceTotals:
    """How each total was made, and its numbers; whoever calls this holds the lock of `DeviceSums`."""

    def __init__(self, memory: Memory, own: OwnBlock, others: MappedBlocks) -> None:
        self._memory, self._own, self._others = memory, own, others
        self._made: dict[int, Made] = {}
        """For the last two rounds, if totals were taken, or slices added up: another group may have met since."""

    @property
    def next(self) -> Made:
        """How the next total will be made."""
        return Made(self._others.group, self._others.membership)

    def forget(self, after: int = -1) -> None:
        """Drop what is known of later rounds: there are other buffers, or another group."""
        self._made = {number: made for number, made in self._made.items() if number <= after}

    def note(self, round: int, made: Made) -> None:
        """A total, or this member's slice of it, was made so."""
        self._made = {number: before for number, before in self._made.items() if number == round - 1}
        self._made[round] = made

    def how(self, round: int) -> Made:
        """How the total of a round is made: another group meets only after this one's has been taken."""
        made = self.next
        return self._made.get(round, made if made.direct else Made(()))

    def block_of(self, who: Who) -> Block:
        """The memory of a member."""
        return self._own.block if who == self._others.own else self._others.block(who)

    def places(self, round: int, made: Made) -> tuple[Sequence[Place], int]:
        """The parts to be added up, and 0; or the totals, and how many numbers their slices divide."""
        blocks, layout = [self.block_of(who) for who in made.group], self._own.layout
        if made.direct:
            return [layout.part(block, round) for block in blocks], 0
        return [layout.total(block, round) for block in blocks], layout.size

    def gather(self, round: int, made: Made) -> None:
        """Have the whole total in this worker's own block."""
        places, sliced = self.places(round, made)
        own, layout, total = self._own.block, self._own.layout, self._own.layout.total(self._own.block, round)
        if not sliced:
            self._memory.add(layout.wire, places, total, 0, layout.size)
        for (block, begin), one in zip(places, slices(0, sliced, len(places)), strict=True) if sliced else ():
            if block is not own:
                at, nbytes = layout.bytes_of(one.start), layout.bytes_of(one.stop - one.start)
                self._memory.copy((own, total[1] + at), (block, begin + at), nbytes)
        self._memory.finish()

    def download(self, round: int, made: Made, out: npt.NDArray[Any]) -> None:
        """Copy the whole total to the host."""
        self.gather(round, made)
        self._memory.download(self._own.layout.total(self._own.block, round), out[: self._own.layout.size])
        self._memory.finish()

    def check(self, round: int, made: Made) -> None:
        """What has been read was still there; or `Overtaken`."""
        totals = 0 if made.direct else self._own.layout.totals
        if self._others.overtaken(made.group, round, made.membership, totals=totals):
            raise Overtaken

    def taken(self, round: int, made: Made) -> None:
        """The total has been read: was it still there? And drop the mappings of former members."""
        self.check(round, made)
        self.note(round, made)
        self._others.keep(made.group)
