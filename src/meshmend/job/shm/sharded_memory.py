"""The memory of the protocol of a sharded job, kept in the courier's record so that it outlives the courier.

A courier may be killed between any two writes. What is one word is written whole. The slices that a rank holds take
many, and to take half of them for all would lose the others: so they are written in turns to two mailboxes, and the
last one that is whole counts.
"""

from __future__ import annotations

from meshmend.job.protocol import NEVER
from meshmend.job.sharding import ShardedState
from meshmend.job.sharding.records import Attempt, Epoch
from meshmend.job.shm.memory import SharedMemory
from meshmend.job.shm.records import CourierRecord, Held
from meshmend.job.shm.segment import CourierSegment


def held_in(record: CourierRecord) -> frozenset[int]:
    """The slices that a rank holds."""
    return frozenset(_newest(record).slices)


def _newest(record: CourierRecord) -> Held:
    found = [mail.body for mail in (record.held_even, record.held_odd) if mail is not None]
    return max(found, key=lambda one: one.turn, default=Held(0, ()))


class ShardedMemory(SharedMemory, ShardedState):
    """What the protocol keeps of one rank of a sharded job."""

    def __init__(self, segment: CourierSegment) -> None:
        super().__init__(segment)
        self.wrong = frozenset()  # the next courier detects it again

    @property
    def met(self) -> Attempt:
        """The last attempt that is known to be decided."""
        return self._segment.courier.met

    @met.setter
    def met(self, value: Attempt) -> None:
        self._segment.courier.met = value

    @property
    def totals(self) -> Attempt:
        """Whose totals are in the buffer."""
        return self._segment.courier.totals

    @totals.setter
    def totals(self, value: Attempt) -> None:
        self._segment.courier.totals = value

    @property
    def came(self) -> Epoch:
        """The last group that this rank was about to join."""
        return self._segment.courier.came[1:]

    @came.setter
    def came(self, value: Epoch) -> None:
        self._segment.courier.came = NEVER, *value

    @property
    def joined(self) -> Epoch:
        """The last one that it has joined."""
        return self._segment.courier.joined[1:]

    @joined.setter
    def joined(self, value: Epoch) -> None:
        self._segment.courier.joined = NEVER, *value

    @property
    def leaving(self) -> bool:
        """Whether its worker has brought its last part."""
        return self._segment.courier.leaving

    @leaving.setter
    def leaving(self, value: bool) -> None:
        self._segment.courier.leaving = value

    @property
    def held(self) -> frozenset[int]:
        """The slices of which a complete copy is here."""
        return held_in(self._segment.courier)

    @held.setter
    def held(self, value: frozenset[int]) -> None:
        record, before = self._segment.courier, _newest(self._segment.courier)
        if before.slices == tuple(sorted(value)):
            return
        after = Held(before.turn + 1, tuple(sorted(value)))
        even = record.held_even
        if even is not None and even.body == before:
            record.held_odd = after
        else:
            record.held_even = after
