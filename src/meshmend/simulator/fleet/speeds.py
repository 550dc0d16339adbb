"""How fast a job runs around a hole, relative to a healthy mesh: from plans for the very holes that occur.

A step is compute and exposed sum. The global batch stays the same: live chips do the dead ones' share in whole lanes,
and the sum takes as much longer as the plan around the hole is slower:

    step = (1 - sum_share) * slowest chip's lanes / lanes + sum_share * healthy algbw / algbw around the hole

* `trees`: its algbw around a hole follows exactly from the hole's bound (`Planner.reach`), which takes milliseconds,
  so every hole has its own; some of the most frequent are planned in full besides, to see that it is so. Other
  algorithms are planned in full, each hole; a hole they cannot go round stops the job.
* A chip on one live link caps every plan at 1.0 B. Where leaving it idle is faster, it idles. Of a mesh that falls
  apart, the largest piece continues.
* Where there are more different holes than `MOST`, the rarest get the lowest relative algbw of those solved with as
  many pieces. Meshes of more than EXACT chips get theirs from a smaller mesh of the same shape: the lowest relative
  algbw of SAMPLE random holes with as many pieces of the kinds that failed. A hole is a larger part of a smaller mesh,
  so that errs on the slow side: 1.8 % of a step on average for 32 random holes on 128x64, against their exact bounds.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from meshmend.base.terminal import Tell
from meshmend.errors import MeshmendError
from meshmend.mesh import Chip, Mesh
from meshmend.mesh.hole import Hole, alike, count, dangling, dead, kind_of, piece
from meshmend.mesh.planners import ALGORITHMS, bound
from meshmend.mesh.planners.combs import comb_algbw

EXACT = 4096
"""Chips of the largest mesh whose holes are solved themselves."""
MOST_BOUNDS, MOST_PLANS = 1500, 60
"""Different holes of one study that are solved, by bounds or by plans: a bound takes milliseconds, a plan a second."""
SAMPLE = 12
MANY = 8
"""Pieces: holes of more of them on meshes of over EXACT chips count as holes of so many."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a healthy training step is made of."""

    sum_share: float = 0.15
    """The part of a healthy step in which chips wait for the gradient sum."""
    lanes: int = 16
    """Lanes that each chip computes in a healthy step; 0: work can be divided as finely as one likes."""

    def speed(self, chips: int, live: int, relative: float) -> float:
        """Steps per hour on so many live chips, with the sum at this part of its healthy algbw; healthy is 1."""
        if not live or not relative:
            return 0.0
        work = math.ceil(self.lanes * chips / live) / self.lanes if self.lanes else chips / live
        return 1 / ((1 - self.sum_share) * work + self.sum_share / relative)


@dataclass(frozen=True)
class Solved:
    """How the speeds of holes were found."""

    holes: int
    """Different holes, those alike counted once."""
    own: int
    """Holes with an algbw of their own."""
    own_time: float
    """Their part of the time in which something was dead."""
    planned: int
    """Holes that were planned in full."""
    planned_time: float
    agree: bool
    """Whether every full plan reached just what its hole's bound had promised."""
    lowest: float
    """The lowest speed that occurred."""
    mean: float
    """The mean speed over the time in which something was dead."""
    scaled_from: str = ""
    """The smaller mesh that stood for this one."""


class Way(NamedTuple):
    """What is left around a hole."""

    live: int
    """Chips that continue."""
    relative: float
    """Algbw over that of the intact mesh; 0 where the algorithm has no plan."""


class Speeds:
    """The speeds of a mesh's holes, each found once."""

    def __init__(self, mesh: Mesh, step: Step, algorithm: str = "trees") -> None:
        self.mesh, self.step, self.planner = mesh, step, ALGORITHMS.find(algorithm)
        self._ways: dict[Hole, Way] = {}
        self._lowest: dict[int, float] = {}
        """The lowest relative algbw seen, by number of pieces."""
        self._like: dict[Hole, Hole] = {}
        self._seen: dict[Hole, float] = {}

    @cached_property
    def healthy(self) -> float:
        """The algbw of the intact mesh."""
        if self.mesh.size > EXACT:
            return comb_algbw(self.mesh)
        return self.planner(self.mesh).algbw

    def solve(
        self, spans: Iterable[tuple[Hole, float]], tell: Tell, *, most: int | None = None, plans: int = 24
    ) -> Solved:
        """Find the speeds of all holes in these spans of time, the longest-lasting first."""
        lasted: dict[Hole, float] = {}
        for hole, hours in spans:
            if hole:
                like = self._alike(hole)
                lasted[like] = lasted.get(like, 0.0) + hours
        order = sorted(lasted, key=lambda hole: (-lasted[hole], hole))
        scaled = self.mesh.size > EXACT
        if most is None:
            most = MOST_BOUNDS if self.planner.reach else MOST_PLANS
        chosen = [] if scaled else order[:most]
        if scaled:
            self._from_smaller(order, tell)
        else:
            self._take(chosen, _each(self._solve, chosen, "solving holes", tell))
        planned, agree = chosen, True
        if self.planner.reach:
            planned = chosen[:plans]
            full = _each(partial(self._solve, full=True), planned, "planning holes", tell)
            agree = all(math.isclose(self._ways[h].relative, w.relative) for h, w in zip(planned, full, strict=True))
            self._take(planned, full)
        whole = sum(lasted.values()) or 1.0
        speeds = {hole: self.of(hole) for hole in order}
        return Solved(
            holes=len(order),
            own=len(chosen),
            own_time=sum(lasted[hole] for hole in chosen) / whole,
            planned=len(planned),
            planned_time=sum(lasted[hole] for hole in planned) / whole,
            agree=agree,
            lowest=min(speeds.values(), default=1.0),
            mean=sum(lasted[hole] * speeds[hole] for hole in order) / whole if order else 1.0,
            scaled_from=str(reference(self.mesh)) if scaled else "",
        )

    def _take(self, holes: list[Hole], ways: list[Way]) -> None:
        self._ways.update(zip(holes, ways, strict=True))
        for hole, way in zip(holes, ways, strict=True):
            self._lowest[len(hole)] = min(self._lowest.get(len(hole), 1.0), way.relative)

    def of(self, hole: Hole) -> float:
        """The speed around a hole."""
        if not hole:
            return 1.0
        like = self._alike(hole)
        if like not in self._seen:
            self._seen[like] = self._speed(like)
        return self._seen[like]

    def _alike(self, hole: Hole) -> Hole:
        if hole not in self._like:
            self._like[hole] = alike(self.mesh, hole)
        return self._like[hole]

    def of_rectangle(self, high: int, wide: int) -> float:
        """The speed on a rectangle of the mesh, whose sum is slower as its combs are."""
        if not high or not wide:
            return 0.0
        mesh = self.mesh
        whole = mesh.wrap[0] and high == mesh.rows, mesh.wrap[1] and wide == mesh.cols
        return self.step.speed(mesh.size, high * wide, comb_algbw(Mesh(high, wide, whole)) / comb_algbw(mesh))

    def _speed(self, hole: Hole) -> float:
        gone, _ = dead(self.mesh, hole)
        idle = dangling(self.mesh, hole)
        pieces = min(len(hole), MANY) if self.mesh.size > EXACT else len(hole)
        lowest = self._lowest.get(pieces, min(self._lowest.values(), default=0.0))
        live, relative = self._ways.get(hole, (self.mesh.size - len(gone | idle), lowest))
        speed = self.step.speed(self.mesh.size, live, relative)
        if idle and self.planner.reach:
            all_live = self._left(hole, set()).live if self.mesh.size <= EXACT else range(self.mesh.size - len(gone))
            speed = max(speed, self.step.speed(self.mesh.size, len(all_live), 1 / self.healthy))
        return speed

    def _left(self, hole: Hole, idle: set[Chip]) -> Mesh:
        """The largest piece left of the mesh."""
        chips, links = dead(self.mesh, hole)
        return self.mesh.fail(chips=chips | idle, links=links).largest()

    def _solve(self, hole: Hole, full: bool = False) -> Way:
        try:
            left = self._left(hole, dangling(self.mesh, hole))
            if self.planner.reach and not full:
                return Way(len(left.live), self.planner.reach(bound(left).value) / self.healthy)
            return Way(len(left.live), self.planner(left).algbw / self.healthy)
        except MeshmendError:  # nothing is left, or no such plan exists
            return Way(0, 0.0)

    def _from_smaller(self, order: list[Hole], tell: Tell) -> None:
        sizes = {min(len(hole), MANY) for hole in order}
        failed = [kind_of(one) for hole in order for one in hole]
        small = reference(self.mesh)
        other = Speeds(small, self.step, self.planner.name)
        random = np.random.default_rng(0)
        holes = {
            alike(small, (piece(small, kind, int(random.integers(count(small, kind)))) for kind in kinds)): None
            for pieces in sorted(sizes)
            for kinds in (random.choice(failed, pieces) for _ in range(SAMPLE))
        }
        for hole, way in zip(holes, _each(other._solve, list(holes), f"solving {small}", tell), strict=True):
            self._lowest[len(hole)] = min(self._lowest.get(len(hole), 1.0), way.relative)


def _each(work: Callable[[Hole], Way], holes: list[Hole], what: str, tell: Tell) -> list[Way]:
    """In threads: the loops of bounds and plans run without the interpreter's lock."""
    out = [work(hole) for hole in holes[:1]]  # what is compiled on its first call is there before threads race for it
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for way in pool.map(work, holes[1:]):
            out.append(way)
            tell(what, len(out), len(holes))
    return out


def reference(mesh: Mesh) -> Mesh:
    """The mesh itself, or one of the same shape with at most EXACT chips."""
    rows, cols = mesh.rows, mesh.cols
    while rows * cols > EXACT:
        rows, cols = (side // 2 if side > 8 else side for side in (rows, cols))
    return Mesh(rows, cols, mesh.wrap)
