"""Where a worker has room for messages: buffers that its courier maps too, made once the size of a message is known.

The size is known only with the first gradients. Before them, workers may exchange notes, for which a footer alone is
enough; and a newcomer, which may take part in that before its first sum, allocates buffers like the others', whose
messages say what theirs are like. Only the main thread allocates; the courier sees a new generation of buffers.

A step may have several sums, each of its own size. All use the same buffers, with room for the largest, so that all
messages have their footers in one place, also those of workers that disagree about which sum comes next. Before the
first step that has one sum more than those before it, the workers tell each other what that is like, in notes: all make
room for it at the same moment, or all find that they do not mean the same sum.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from meshmend.errors import JobError
from meshmend.job.device.messages import Messages
from meshmend.job.exchange import Notes
from meshmend.job.reduction.base import Reduction, WireFormat
from meshmend.job.reduction.float32 import Float32
from meshmend.job.reduction.footer import Note
from meshmend.job.reduction.registry import kind_of, wire_format
from meshmend.job.shm.buffers import make_buffers
from meshmend.job.shm.home import free, too_small
from meshmend.job.shm.segment import WorkerSegment


class SumFormat(NamedTuple):
    """What the messages of one sum of a step are like."""

    layout: int
    size: int
    """Numbers without the footer."""
    head: int

    def note(self) -> Note:
        """For the other workers."""
        return Note.of(struct.pack("<3q", *self), 0)


Format = tuple[int, int, int, int, list[SumFormat]]
"""The format of messages: the number of their kind (0 before there are any), their size, the head's, the layout; and
what the sums of a step are like."""


class MessageRoom:
    """The buffers of one worker in one job; `round` is the round in which they are made."""

    def __init__(self, segment: WorkerSegment, messages: Messages, footer: int, round: Callable[[], int]) -> None:
        self._segment, self._messages, self._footer, self._round = segment, messages, footer, round
        self.made = False
        """Whether there are buffers of this job."""
        self._sums: list[SumFormat] = []
        """The sums of a step, as all workers know them."""
        self._seen: set[int] = set()
        """Those that this worker has computed a lane of."""

    def fits(self, turn: int) -> bool:
        """Whether these are the buffers of this sum of a step."""
        return turn in self._seen

    def fit_sum(self, turn: int, reduction: Reduction, state: Callable[[], int]) -> SumFormat | None:
        """Have room for a sum of a step; if the others do not know it yet, what they must be told of it first.

        Finds out with the first one, and not after a death, whether the bytes of the state fit too.
        """
        found = SumFormat(reduction.layout.number, reduction.size, reduction.head)
        if turn == 0:
            self._sums[:1] = [found]
            self._grow(reduction.wire_format(self._footer).kind)
            needed = state() if self._segment.agent.ranks > 1 else 0
            if needed > free():
                raise JobError(f"handing the state of rank {self._segment.rank} to a replacement {too_small(needed)}")
        elif turn >= len(self._sums):
            return found
        elif found != self._sums[turn]:
            raise different([self._segment.rank], turn)
        self._seen.add(turn)
        self.use(turn)
        return None

    def agree(self, own: SumFormat, notes: Notes) -> None:
        """All have told each other what the next sum of the step is like: have room for it, if all mean the same."""
        told = {rank: note.data for rank, (_, note) in notes.items()}
        if len(set(told.values())) > 1:
            most = max(told.values(), key=[*told.values()].count)
            raise different([rank for rank, data in told.items() if data != most], len(self._sums))
        self._sums.append(own)
        self._grow(kind_of(self._segment.worker.kind))

    def use(self, turn: int) -> None:
        """The next part is one of this sum."""
        one, own = self._sums[turn], self._segment.worker
        if (own.used, own.head, own.sums) != (one.size, one.head, len(self._sums)):
            own.used, own.sums = one.size, len(self._sums)
            if own.head != one.head:
                own.head = one.head
                self._messages.use(wire_format(own.kind, own.numbers, own.head))

    def fit_notes(self) -> None:
        """Have room for messages without gradients."""
        if not self.made:
            self._replace(WireFormat(Float32, self._footer), 0)

    def format(self) -> Format:
        """What messages are like, for a newcomer that takes part in an exchange before its first sum."""
        own = self._segment.worker
        return (own.kind, own.numbers, own.head, own.layout, self._sums) if self.made else (0, 0, 0, 0, [])

    def adopt(self, kind: int, numbers: int, head: int, layout: int, sums: Sequence[Sequence[int]]) -> None:
        """Allocate buffers like the others', whose notes give the format of their messages."""
        if kind:
            self._replace(wire_format(kind, numbers, head), layout)
        self._sums = [SumFormat(*one) for one in sums]
        self._segment.worker.used, self._segment.worker.sums = 0, len(self._sums)

    def _grow(self, kind: type[Reduction]) -> None:
        """Have room for the largest sum that is known."""
        first, largest = self._sums[0], max(one.size for one in self._sums)
        self._replace(WireFormat(kind, largest + self._footer, first.head), first.layout)

    def _replace(self, wire: WireFormat, layout: int) -> None:
        """Allocate buffers for such messages, from this round on; keep the present ones if they fit."""
        own, there = self._segment.worker, self._messages.wire
        same = there is not None and (there.kind, there.size) == (wire.kind, wire.size)
        if not (self.made and same and (own.kind, own.numbers, own.layout) == (wire.kind.number, wire.size, layout)):
            self._messages.make(wire)
            make_buffers(self._segment.files, self._segment.worker, wire, layout, self._round())
            self.made = True


def different(ranks: Sequence[int], turn: int) -> JobError:
    """What to say where workers return different trees in a sum that is not the first of its step."""
    odd = ", ".join(map(str, ranks))
    return JobError(
        f"worker {odd} returned gradients with a different structure, shape or dtype than the other workers in sum "
        f"{turn + 1} of a step; every worker must return the same tree"
    )
