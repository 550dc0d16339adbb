"""Seeded failures and repairs of one job's mesh: what fails when, and what is dead from then on.

Every chip, board, host and link fails by itself, at its kind's rate while it works (exponential times), and works again
after its repair. All policies see the same history. Kinds draw from streams of their own, so a change of the links'
rate leaves the hosts' failures as they were.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshmend.base.registry import Registry
from meshmend.errors import SimulateError
from meshmend.mesh import Mesh
from meshmend.mesh.hole import KINDS, Hole, Piece, count, piece


class Change(NamedTuple):
    """Something failed or works again."""

    time: float
    """Hours since the job began."""
    failed: bool
    piece: Piece
    hole: Hole
    """All that is dead after it."""


@dataclass(frozen=True)
class RepairTimes:
    """How the times of repairs are spread about their mean."""

    about: str
    drawn: Callable[[np.random.Generator, int], npt.NDArray[np.float64]]
    """So many of them, in multiples of the mean."""


REPAIR_TIMES: Registry[RepairTimes] = Registry(
    "repair time", SimulateError,
    {
        "exponential": RepairTimes("exponential, mean", lambda random, number: random.exponential(size=number)),
        "fixed": RepairTimes("fixed", lambda _, number: np.ones(number)),
    },
)  # fmt: skip


@dataclass(frozen=True)
class History:
    """The changes of one job, in their order, up to the end."""

    hours: float
    changes: tuple[Change, ...]

    @property
    def failures(self) -> int:
        """How many things failed."""
        return sum(change.failed for change in self.changes)

    def spans(self) -> list[tuple[Hole, float]]:
        """Each hole and the hours it lasted, in order."""
        ends = [change.time for change in self.changes[1:]] + [self.hours] * bool(self.changes)
        return [(change.hole, end - change.time) for change, end in zip(self.changes, ends, strict=True)]


def sample(
    mesh: Mesh,
    hours: float,
    rate: Mapping[str, float],
    repair: Mapping[str, float],
    seed: int,
    job: int,
    repair_times: str = "exponential",
) -> History:
    """One job's history. Failures drawn for a thing that is dead already do not count: that makes its times exact."""
    drawn: list[tuple[float, str, int, float]] = []
    drawn_from = REPAIR_TIMES.find(repair_times).drawn
    for stream, kind in enumerate(KINDS):
        if not rate.get(kind):
            continue
        random = np.random.default_rng([seed, job, stream])
        things = count(mesh, kind)
        number = int(random.poisson(things * rate[kind] * hours))
        times = random.uniform(0, hours, number)
        which = random.integers(things, size=number)
        lasts = repair[kind] * drawn_from(random, number)
        drawn += [(float(t), kind, int(w), float(last)) for t, w, last in zip(times, which, lasts, strict=True)]
    return history(mesh, hours, sorted(drawn))


def history(mesh: Mesh, hours: float, drawn: list[tuple[float, str, int, float]]) -> History:
    """The changes that failures (time, kind, number, hours until repaired) in order of time lead to."""
    changes: list[Change] = []
    broken: dict[Piece, None] = {}
    mending: list[tuple[float, Piece]] = []

    def mend(until: float) -> None:
        while mending and mending[0][0] < until:
            time, whole = heapq.heappop(mending)
            del broken[whole]
            changes.append(Change(time, False, whole, tuple(broken)))

    for time, kind, number, lasts in drawn:
        mend(time)
        lost = piece(mesh, kind, number)
        if lost in broken:
            continue
        broken[lost] = None
        heapq.heappush(mending, (time + lasts, lost))
        changes.append(Change(time, True, lost, tuple(broken)))
    mend(hours)
    return History(hours, tuple(changes))
