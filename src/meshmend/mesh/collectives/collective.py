"""What each collective does: which chips' parts go into a piece of data, and which chips get it.

| collective | a piece | made from the parts of | ends at | goes |
|---|---|---|---|---|
| all_reduce | one for each group | the group's members | the same | up, then down |
| reduce_scatter | one for each chip, 1/N of the payload | all chips | that chip | up |
| all_gather | one for each chip, 1/N of the payload | that chip | all chips | down |
| broadcast | one | the root | all chips | down |
| all_to_all | one for each pair, 1/N of the payload | the sender | the receiver | down |

A new collective is a line in `COLLECTIVES` and a planner (`planner.py`); the plan, its proof, the schedule, its replay
and the executor ask for these capabilities and never compare names.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshmend.base.registry import Registry
from meshmend.errors import PlanError

ALL_REDUCE = "all_reduce"


@dataclass(frozen=True, kw_only=True)
class Collective:
    """What moves, and which way."""

    name: str
    up: bool = False
    """Whether parts are added on their way to the root."""
    down: bool = False
    """Whether a result leaves the root."""
    per_chip: bool = False
    """Whether every chip is the root of 1/N of the payload."""
    personal: bool = False
    """Whether every receiver gets data of its own, so that a tree is a bundle of paths."""
    rooted: bool = False
    """Whether there is one root, which the caller may choose."""
    does: str = ""
    """In words."""


COLLECTIVES: Registry[Collective] = Registry(
    "collective",
    PlanError,
    {
        collective.name: collective
        for collective in (
            Collective(name=ALL_REDUCE, up=True, down=True, does="every chip gets the sum of all chips' parts"),
            Collective(name="reduce_scatter", up=True, per_chip=True, does="every chip gets its 1/N of the sum"),
            Collective(name="all_gather", down=True, per_chip=True, does="every chip gets the parts of all chips"),
            Collective(name="broadcast", down=True, rooted=True, does="every chip gets the root's payload"),
            Collective(
                name="all_to_all", down=True, per_chip=True, personal=True, does="every chip sends 1/N to each chip"
            ),
        )
    },
)
