"""What a member of a sharded job asks its executor to do, besides what `protocol/operations.py` has."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from meshmend.job.protocol import Operation, Round
from meshmend.job.sharding.plan import Fill


@dataclass(frozen=True)
class Prepare:
    """Have the worker produce its part over these lanes, and meanwhile copy slices, to here and from here.

    A member's slices do not change while it prepares, nor while anyone else does: nobody updates before all have met.
    """

    round: Round
    lanes: tuple[int, ...]
    fills: tuple[Fill, ...]
    """Those of all members: a transport that sends messages needs both ends."""


@dataclass(frozen=True)
class Scatter:
    """When all members have their parts, add up these slices of them. Result: the `Total`, as every member has it.

    The parts stay as they are until the next `Prepare`: until then somebody may have to add them up again.
    """

    round: Round
    slices: frozenset[int]
    takers: tuple[tuple[int, ...], ...]
    """For each slice, the ranks of all that add it up."""


@dataclass(frozen=True)
class Meet:
    """Wait until every member has come here. Result: nothing."""

    round: Round


@dataclass(frozen=True)
class Measure:
    """Have the worker say what the norms of whole tensors depend on, and tell everyone. Result: nothing.

    An optimizer that needs norms has one or more such stages before its update. What a holder says of a slice follows
    from the slice and its total, so all holders say the same, and one that has updated it says what it said before.
    """

    round: int
    stage: int


@dataclass(frozen=True)
class Update:
    """Have the worker update these slices with their totals, those that have not been updated in this round.

    Before that, a worker compares its copy, updated or not, with the digest that all its holders last agreed on. Where
    they differ, its memory is at fault, and it ends: the other holders need no third one to know who was right.
    """

    round: int
    slices: frozenset[int]


@dataclass(frozen=True)
class Compare:
    """When all members have updated: the digests of all copies. Result: for each slice, each holder's digest."""

    round: int


@dataclass(frozen=True)
class Give:
    """Take the new weights of every slice that is not held here from the rank that gives it out. Result: nothing.

    What arrives is compared with the digest of the weights that the holders agreed on, and fails where it differs. That
    costs nothing, if the digest of all weights is made of those of the slices.
    """

    round: int
    givers: tuple[int, ...]
    """For each slice."""
    take: bool = True
    """Whether this member needs them."""


ShardedOperation = Operation | Prepare | Scatter | Meet | Measure | Update | Compare | Give
ShardedSteps = Generator[ShardedOperation, Any, Any]
"""A member of a sharded job at work."""
