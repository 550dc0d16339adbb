"""A round is a value: one collective over all members of the job, over a fixed number of lanes.

Members bring their gradients, and everything they agree on (who counted which lane, whether all states are alike) rides
on the same message. In the rounds of an exchange (`job.gather`, `job.evaluate`), they bring notes instead of gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NEVER = -1
"""The number of the round before the first."""
MOST_LANES = 4096
"""More have no room in shared memory, nor in the notes of exact sums."""


class RoundKind(Enum):
    """What a round was for.

    Scripts decide that, each worker's on its own, so a courier learns it from what all members have brought: it is a
    property of the `Total`, and a `Round` that is only about to begin has none.
    """

    SUM = "sum"
    """Gradients: the round is a step, or one of the sums that a step has."""
    EXCHANGE = "exchange"
    """Notes (`job.gather`, `job.evaluate`): it belongs to no step."""
    END = "end"
    """Every member has left the loop."""


class Collective(Enum):
    """How the members' parts become totals."""

    ALL_REDUCE = "all-reduce"
    """Every member receives the whole sum."""
    REDUCE_SCATTER_ALL_GATHER = "reduce-scatter, all-gather"
    """Every member receives the sum of its own slice, updates it, and then receives the other slices."""


@dataclass(frozen=True)
class Round:
    """One round of a job."""

    number: int
    """Rounds count from 0, without gaps, for as long as any member lives."""
    lanes: int
    """How many lanes it is divided into; each must be counted exactly once."""
    collective: Collective = Collective.ALL_REDUCE
