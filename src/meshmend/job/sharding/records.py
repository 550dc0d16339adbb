"""What a member of a sharded job remembers besides a `MemberState`, and what it tells the others."""

from __future__ import annotations

from dataclasses import dataclass

from meshmend.job.protocol import NEVER, MemberState, Record

Epoch = tuple[int, int]
"""(world, shrink): which group of members."""
Attempt = tuple[int, int, int]
"""(round, world, shrink): a round, and the group that does it. One that failed is another attempt of the same round."""

BEFORE: Attempt = (NEVER, 0, 0)
"""The attempt before the first."""


@dataclass(frozen=True)
class ShardedRecord(Record):
    """What a member tells the others during recovery; `done` is the last round whose weights are all here."""

    met: Attempt = BEFORE
    """The last round that it knows to be decided."""
    held: frozenset[int] = frozenset()
    """Slices of which it has a copy, as of `met`."""
    came: Epoch = (0, 0)
    """The last group that it was about to join."""
    joined: Epoch = (0, 0)
    """The last one that it has joined: everyone else of that group came as well."""
    leaving: bool = False
    """Whether its worker has no more steps to do, and has said so in its part."""
    wrong: frozenset[int] = frozenset()
    """Ranks whose weights or slices it found wrong: they may have been interrupted before they could find out."""


@dataclass
class ShardedState(MemberState):
    """What must survive the courier.

    `met` is written before the first slice is updated, so a member in which anything has changed says so.
    """

    met: Attempt = BEFORE
    """The last round known to be decided: its updates may be made, and must be."""
    totals: Attempt = BEFORE
    """Whose totals are here, for all slices held; written last, and taken back before any of them changes."""
    held: frozenset[int] = frozenset()
    """Slices of which a complete copy is here."""
    came: Epoch = (0, 0)
    joined: Epoch = (0, 0)
    leaving: bool = False
    wrong: frozenset[int] = frozenset()
    """As in `ShardedRecord`."""
