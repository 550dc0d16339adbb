"""What can be made to fail: points in a worker and its courier, and a registry of kinds of failure.

`mm.testing.fail_at` brings a kind about at a point of a step (`inject.py`), `meshmend chaos` strikes a living run from
outside at random. Both take their kinds from here: a new kind is one entry in `kinds.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from meshmend.errors import JobError
from meshmend.telemetry import Component


class Point(StrEnum):
    """Where a failure can strike."""

    SHARE = "share"
    """The worker is about to hand over its first state."""
    COMPUTE = "compute"
    """The worker computes a lane of that step."""
    COMMIT = "commit"
    """The worker has the sum and is about to commit."""
    ALLREDUCE = "allreduce"
    """The courier is about to sum, while others may be summing already."""
    ADD = "add"
    """The courier is about to add up its slice; all workers are on one host."""
    TAKE = "take"
    """The courier is about to take the slices of the others."""
    MEET = "meet"
    MEASURE = "measure"
    UPDATE = "update"
    COMPARE = "compare"
    GIVE = "give"
    """These five: the courier of a sharded job is about to do that; before them it sums ("allreduce")."""
    RELAY = "relay"
    """The courier has half of what comes to it over the links of a mesh; only with `--mesh`."""
    REVOKE = "revoke"
    SHRINK = "shrink"
    EXCHANGE = "exchange"
    ROLL_FORWARD = "roll forward"
    STATE = "state"
    """These five: the courier is in that part of a repair."""


WORKER_POINTS = (Point.SHARE, Point.COMPUTE, Point.COMMIT)
COURIER_POINTS = tuple(point for point in Point if point not in WORKER_POINTS)


@dataclass(frozen=True)
class Target:
    """Processes of one rank, as chaos strikes them from outside."""

    run: str
    rank: int
    worker: int
    courier: int
    mpirun: int
    launcher: int
    agent: int = 0
    """The agent of the rank's host; on the launcher's own host, that is the launcher."""


@dataclass(frozen=True)
class FaultKind:
    """A kind of failure."""

    name: str
    what: str
    """What happens, for help texts."""
    points: tuple[Point, ...] = ()
    """Where `fail_at` can bring it about."""
    part: Component = Component.WORKER
    """What dies or goes wrong."""
    inside: Callable[[Fault, int], None] | None = None
    """Brings it about in the process that is at the point, given the worker's process; None: the caller has to."""
    outside: Callable[[Target], None] | None = None
    """Brings it about in a living run; None: `meshmend chaos` does not have it."""
    members: int = 2
    """Members that chaos leaves it to strike one of: with fewer, the run could not survive."""
    of_run: bool = False
    """Whether it strikes the whole run rather than one rank, whose worker lives on."""
    asked_for: bool = False
    """Whether chaos uses it only on request: a user must attach or resume, or the states are at stake."""
    settles: bool = False
    """Whether chaos waits until the run has detected the victim: further failures could make it the majority."""


KINDS: dict[str, FaultKind] = {}
"""All kinds, by name."""


def register(kind: FaultKind) -> FaultKind:
    """Add a kind."""
    KINDS[kind.name] = kind
    return kind


def chaos_kinds() -> list[str]:
    """The kinds that can strike a living run."""
    return [kind.name for kind in KINDS.values() if kind.outside is not None]


def default_kinds() -> list[str]:
    """Return the kinds that a run survives by itself, with its states untouched."""
    return [name for name in chaos_kinds() if not KINDS[name].asked_for]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One failure to come."""

    rank: int
    step: int
    point: str = "compute"
    kind: str = "kill"
    sum: int = 0
    """Which sum of the step, from 0."""

    def __post_init__(self) -> None:
        kinds = {name: kind for name, kind in KINDS.items() if kind.points}
        if self.point not in [*Point] or self.kind not in kinds:
            raise JobError(
                f"point={self.point!r}, kind={self.kind!r}: choose a point from {', '.join(Point)} and a kind from "
                f"{', '.join(kinds)}"
            )
        points = kinds[self.kind].points
        if self.point not in points:
            raise JobError(
                f"kind={self.kind!r} cannot happen at point={self.point!r}: choose a point from {', '.join(points)}"
            )
