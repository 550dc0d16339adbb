"""What a member asks its executor to do: MPI in production (`courier/mpi.py`), a simulator in tests."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from meshmend.job.protocol.records import Record
from meshmend.job.protocol.rounds import Round


class Payload(Enum):
    """What one member can send to the others."""

    TOTAL = "total"
    """The total of the latest round."""
    STATE = "state"
    """The training state after the latest round."""


@dataclass(frozen=True)
class Begin:
    """Take part in a new world of couriers. Result: this member's position in it."""


@dataclass(frozen=True)
class Work:
    """Have the worker produce its part of a round, over these lanes. Result: nothing; the part is ready."""

    round: Round
    lanes: tuple[int, ...]


@dataclass(frozen=True)
class Reduce:
    """Run the round's collective on the parts of the active members. Result: the `Total`."""

    round: Round


@dataclass(frozen=True)
class Wait:
    """A spare sleeps until the group is revoked (`Failure`) or the job is over (result: nothing)."""


@dataclass(frozen=True)
class Revoke:
    """Make every pending and future operation of the group fail, everywhere.

    That includes reductions of the group enlisted from it, even where this member never received that group: an
    executor must watch both (found by simulation: a member whose `Enlist` failed cannot revoke what it does not have).
    """


@dataclass(frozen=True)
class Shrink:
    """Form the group of the survivors; all get the same one. Result: this member's position in it."""


@dataclass(frozen=True)
class Gather:
    """Send every member's record to every member. Result: a list in order of positions."""

    record: Record


@dataclass(frozen=True)
class Cast:
    """The member at position `source` sends something to all. Result: whether it had nothing to send, on all of them.

    That is so for a state while its worker is within a step, between two sums: a newcomer, whose script begins with the
    first sum of a step, could not continue from there.
    """

    source: int
    what: Payload
    take: bool
    """Whether this member keeps what arrives."""


@dataclass(frozen=True)
class Enlist:
    """Form the group of the active members, for reductions. Result: nothing; it comes when all have got here."""

    active: tuple[int, ...]
    """Their positions."""
    world: int = 0
    shrink: int = 0
    """The epoch in which they were enlisted: see `Record`."""


Operation = Begin | Work | Reduce | Wait | Revoke | Shrink | Gather | Cast | Enlist
Steps = Generator[Operation, Any, None]
"""A member at work: it yields operations, is sent their results, and ends when the job does."""
