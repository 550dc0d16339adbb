"""The memory of the protocol, kept in the courier's record so that it outlives the courier."""

from __future__ import annotations

from meshmend.job.protocol import NEVER, MemberState
from meshmend.job.protocol.records import Stamp
from meshmend.job.shm.records import Assigned, Copied
from meshmend.job.shm.segment import CourierSegment


class SharedMemory(MemberState):
    """What the protocol keeps of one rank; the orders of its writes are drawn in `mailbox.py`."""

    def __init__(self, segment: CourierSegment) -> None:
        self._segment = segment
        self.rank = segment.rank

    @property
    def done(self) -> int:
        """The last round whose total is here."""
        return self._segment.courier.done

    @done.setter
    def done(self, value: int) -> None:
        record = self._segment.courier
        record.done_world = record.world
        record.done_shrink = record.shrink
        record.done = value
        self._segment.worker_bell.ring()

    @property
    def stamps(self) -> tuple[Stamp, Stamp]:
        """By which group the totals of the last even and of the last odd round were made."""
        return self._segment.courier.even_made, self._segment.courier.odd_made

    @stamps.setter
    def stamps(self, value: tuple[Stamp, Stamp]) -> None:
        self._segment.courier.even_made, self._segment.courier.odd_made = value

    @property
    def group(self) -> tuple[int, int]:
        """World and shrink of the last group that this member was in."""
        _, world, shrink = self._segment.courier.group
        return world, shrink

    @group.setter
    def group(self, value: tuple[int, int]) -> None:
        self._segment.courier.group = NEVER, *value

    @property
    def active(self) -> bool:
        """Whether this member takes part in rounds."""
        return self._segment.courier.active

    @active.setter
    def active(self, value: bool) -> None:
        self._segment.courier.active = value
        self._segment.worker_bell.ring()

    @property
    def copied(self) -> tuple[int, int]:
        """(round, rank): whose state after which round this member got."""
        mail = self._segment.courier.copied
        return (NEVER, -1) if mail is None else (mail.body.round, mail.body.rank)

    @copied.setter
    def copied(self, value: tuple[int, int]) -> None:
        self._segment.courier.copied = Copied(*value)

    @property
    def assigned(self) -> tuple[int, tuple[int, ...]]:
        """(round, lanes): what this member is responsible for; nothing, if that was written only halfway."""
        mail = self._segment.courier.assigned
        return (NEVER, ()) if mail is None else (mail.body.round, mail.body.lanes)

    @assigned.setter
    def assigned(self, value: tuple[int, tuple[int, ...]]) -> None:
        self._segment.courier.assigned = Assigned(*value)
