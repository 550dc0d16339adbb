"""Staged plans of intact meshes and tori: along one axis after another, with roots at even distances on every line.

On a line or ring of n chips with a root at every g-th, each chip's part goes straight to all n / g roots; every root
then goes on along the next axis. In the end each chip gets the result from the nearest root. On a torus with sides n
that takes

    hops   the diameter, and g / 2 for each axis to spread the result
    load   n / 2g along the first axis, n / 2gg' along the second, and so on: the more roots, the more links carry

so close roots suit small payloads and distant ones large payloads. With g = n on the first axis and 1 on the others it
is a reduce-scatter along rows, an exchange of what is left, and an all-gather along rows; with g = 1 on all of them
every chip sums for itself (the all-to-all broadcast of Johnsson and Ho, IEEE Trans. Comput. 38(9), 1989, with sums in
place of lists).

The payload is divided among the orders of axes, so that all links work in every stage, and among shifts of the roots,
so that all lines of the later stages do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshmend.errors import PlanError
from meshmend.mesh import Mesh
from meshmend.mesh.grid import STEP
from meshmend.mesh.planners.cost import SMALLEST_CHUNK, LinkSpeed, link_speed
from meshmend.mesh.planners.plan import Ways
from meshmend.mesh.staged.plan import ABSENT, StagedFlow, StagedPlan, seconds

MOST_SHIFTS = 16
"""Shifts of the roots, at most: each is a flow, and has chunks of its own."""
LIKELY = 3
"""Spacings that are looked at closely."""
MOST_CELLS = 6_000_000
"""Chips of all layers of all flows, at most: tables with more take seconds to make."""


def staged(mesh: Mesh, spacing: Sequence[int], *, orders: int | None = None, shifts: int | None = None) -> StagedPlan:
    """The plan with roots at these distances: `spacing` in order of stages, one number for each axis longer than 1.

    `orders` takes so many orders of the axes (all rotations, if left out), `shifts` so many places of the roots.
    """
    axes = [axis for axis, side in enumerate(mesh.dims) if side > 1]
    if not mesh.intact or not mesh.even:
        raise PlanError(f"staged needs an intact mesh with equal links, and {mesh} is not one: use trees instead")
    if len(spacing) != len(axes) or min(spacing, default=1) < 1:
        raise PlanError(f"spacing={tuple(spacing)}: give {len(axes)} distances between roots, each at least 1")
    if not axes:
        raise PlanError("one chip has nothing to sum in stages: use trees instead")
    rotations = [axes[i:] + axes[:i] for i in range(len(axes))][:orders]
    most = min(MOST_SHIFTS, spacing[0]) if shifts is None else shifts
    # On a ring with an even number of chips, one is equally far both ways: half of the flows go either way.
    both = most == spacing[0] > 2 and most <= MOST_SHIFTS and any(mesh.wrap)
    flows = [
        _flow(mesh, order, spacing, shift * max(1, spacing[0] // most), turned)
        for order in rotations
        for shift in range(most)
        for turned in ((False, True) if both else (shift % 2 == 1,))
    ]
    share = 1 / len(flows)
    label = "roots " + ", ".join(map(str, spacing)) + " apart"
    return StagedPlan(mesh, tuple(StagedFlow(share, stages, down) for stages, down in flows), label)


def _flow(
    mesh: Mesh, order: Sequence[int], spacing: Sequence[int], shift: int, turned: bool
) -> tuple[tuple[Ways, ...], Ways]:
    """Stages and the way back for one order of the axes; `turned` goes the other way where both are equally far."""
    places = mesh.positions()
    inside = np.ones(mesh.size, bool)
    down = np.full(mesh.size, -1, np.int8)
    stages = []
    for turn, (axis, gap) in enumerate(zip(order, spacing, strict=True)):
        side, wrapped, place = mesh.dims[axis], mesh.wrap[axis], places[axis]
        roots = _roots(side, min(gap, side), wrapped, shift + (gap // 2 if turned and turn else 0))
        layers = np.full((len(roots), mesh.size), ABSENT, np.int8)
        for layer, root in enumerate(roots):
            layers[layer, inside] = _toward(place, np.full(mesh.size, root), side, wrapped, axis, turned)[inside]
        stages.append(layers)
        back = _toward(place, _nearest(place, roots, side, wrapped), side, wrapped, axis, turned)
        down = np.where((down < 0) & inside, back, down).astype(np.int8)
        inside &= np.isin(place, roots)
    return tuple(stages), down


def _roots(side: int, gap: int, wrapped: bool, shift: int) -> list[int]:
    """Places of the roots on a line of so many chips; a single root of a line without ends joined is in its middle."""
    count = -(-side // gap)
    if not wrapped:
        return sorted({min(side - 1, (2 * i + 1) * side // (2 * count)) for i in range(count)})
    return sorted({(i * side // count + shift) % side for i in range(count)})


def _nearest(place: npt.NDArray[np.int64], roots: list[int], side: int, wrapped: bool) -> npt.NDArray[np.int64]:
    away = np.abs(place[:, None] - np.array(roots))
    if wrapped:
        away = np.minimum(away, side - away)
    return np.asarray(np.array(roots)[np.argmin(away, 1)])


def _toward(
    place: npt.NDArray[np.int64], goal: npt.NDArray[np.int64], side: int, wrapped: bool, axis: int, turned: bool
) -> Ways:
    """The way along an axis from each place to its goal, the shorter way round; -1 at the goal."""
    forward = next(way for way, (along, step) in enumerate(STEP) if along == axis and step > 0)
    backward = next(way for way, (along, step) in enumerate(STEP) if along == axis and step < 0)
    ahead = (goal - place) % side if wrapped else goal - place
    half = (side - turned) // 2 if wrapped else side
    return np.where(ahead == 0, -1, np.where((ahead > 0) & (ahead <= half), forward, backward)).astype(np.int8)


class Spacing(NamedTuple):
    """One way to space the roots, and about what it costs."""

    gaps: tuple[int, ...]
    orders: int
    shifts: int
    time: float


def spacings(mesh: Mesh, nbytes: float, speed: LinkSpeed) -> list[Spacing]:
    """Distances between roots that may suit a payload, in order of predicted time: halves of the sides."""
    sides = [side for side in mesh.dims if side > 1]
    rings = [wrapped for side, wrapped in zip(mesh.dims, mesh.wrap, strict=True) if side > 1]
    longest = max(sides)
    halves = [-(-longest // 2**power) for power in range(math.ceil(math.log2(longest)) + 1)]
    most = max(1, int(nbytes // SMALLEST_CHUNK))
    orders = len(sides) if most >= len(sides) else 1
    payload = nbytes / speed.bandwidth
    out = []
    for gaps in itertools.product(halves, repeat=len(sides)):
        if any(after > before for before, after in itertools.pairwise(gaps)):
            continue  # what later stages carry is less, so they can afford more roots
        shifts = max(1, min(MOST_SHIFTS, gaps[0], most // orders))
        roots = [-(-side // min(gap, side)) for side, gap in zip(sides, gaps, strict=True)]
        if orders * shifts * sum(roots) * mesh.size > MOST_CELLS:
            continue
        part, time = 1.0, 0.0
        for side, ring, count in zip(sides, rings, roots, strict=True):
            hops = side // 2 if ring else side - 1
            busy = payload / orders * count * max(part, 1 / shifts) * (0.5 if ring else 1.0)
            time += max(hops * speed.latency, busy)
            part *= count / side
        down = sum(min(gap, side) // 2 for side, gap in zip(sides, gaps, strict=True))
        out.append(Spacing(gaps, orders, shifts, time + max(down * speed.latency, payload / orders / 2 * (down > 0))))
    return sorted(out, key=lambda spacing: spacing.time)


def best_staged(mesh: Mesh, nbytes: float, link: str | LinkSpeed = "tpu-v3") -> StagedPlan | None:
    """The staged plan with the shortest predicted time; None where there is none for this mesh."""
    if not mesh.intact or not mesh.even or mesh.size == 1:
        return None
    speed = link_speed(link)
    likely = [staged(mesh, gaps, orders=orders, shifts=shifts) for gaps, orders, shifts, _ in
              spacings(mesh, nbytes, speed)[:LIKELY]]  # fmt: skip
    return min(likely, key=lambda plan: seconds(plan, nbytes, speed), default=None)
