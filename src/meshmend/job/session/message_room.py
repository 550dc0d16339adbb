"""Where a worker has room for messages: buffers that its courier maps too, made once the size of a message is known.

The size is known only with the first gradients. Before them, workers may exchange notes, for which a footer alone is
enough; and a newcomer, which may take part in that before its first sum, allocates buffers like the others', whose
messages say what theirs are like. Only the main thread allocates; the courier sees a new generation of buffers.
"""

from __future__ import annotations

from collections.abc import Callable

from meshmend.errors import JobError
from meshmend.job.device.places import Places
from meshmend.job.reduction.base import Reduction, WireFormat
from meshmend.job.reduction.float32 import Float32
from meshmend.job.reduction.registry import wire_format
from meshmend.job.shm.buffers import make_buffers
from meshmend.job.shm.home import free, too_small
from meshmend.job.shm.segment import WorkerSegment

Format = tuple[int, int, int, int]
"""The format of messages: the number of their kind (0 before there are any), their size, the head's, the layout."""


class MessageRoom:
    """The buffers of one worker in one job; `round` is the round in which they are made."""

    def __init__(self, segment: WorkerSegment, places: Places, footer: int, round: Callable[[], int]) -> None:
        self._segment, self._places, self._footer, self._round = segment, places, footer, round
        self.made = False
        """Whether there are buffers of this job."""
        self.fits = False
        """Whether these are the buffers of its sums."""

    def fit_sums(self, reduction: Reduction, state: Callable[[], int]) -> None:
        """Have room for these sums; find out now, and not after a death, whether the bytes of the state fit too."""
        self.fits = True
        self._replace(reduction.wire_format(self._footer), reduction.layout.number)
        needed = state() if self._segment.agent.ranks > 1 else 0
        if needed > free():
            raise JobError(f"handing the state of rank {self._segment.rank} to a replacement {too_small(needed)}")

    def fit_notes(self) -> None:
        """Have room for messages without gradients."""
        if not self.made:
            self._replace(WireFormat(Float32, self._footer), 0)

    def format(self) -> Format:
        """What messages are like, for a newcomer that takes part in an exchange before its first sum."""
        own = self._segment.worker
        return (own.kind, own.numbers, own.head, own.layout) if self.made else (0, 0, 0, 0)

    def adopt(self, kind: int, numbers: int, head: int, layout: int) -> None:
        """Allocate buffers like the others', whose notes give the format of their messages."""
        if kind:
            self._replace(wire_format(kind, numbers, head), layout)

    def _replace(self, wire: WireFormat, layout: int) -> None:
        """Allocate buffers for such messages, from this round on; keep the present ones if they fit."""
        if self.format() != (wire.kind.number, wire.size, wire.head, layout) or self._places.wire != wire:
            self._places.make(wire)
            make_buffers(self._segment.files, self._segment.worker, wire, layout, self._round())
            self.made = True
