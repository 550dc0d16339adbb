"""Three ways to add up lanes: floats, floats that travel as bf16, or exactly. All fill one flat buffer, the wire."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError
from meshmend.job.reduction import bf16
from meshmend.job.reduction.exact import Exact
from meshmend.job.reduction.wire import Layout, Leaf

SMALL = 64
"""Leaves of fewer numbers travel as float32 always: losses need their digits, and there is nothing to save."""


class Sums(Protocol):
    """How lanes are added, and what a total says."""

    wire_size: int
    wide: int
    """Bytes of a number on the wire; negative for integers."""
    packed: int
    """How many of its first numbers hold bf16 instead."""

    def add(self, wire: npt.NDArray[Any], tree: Any, *, first: bool) -> None:
        """Add one lane's gradients; the first ones are written over what is there."""

    def put(self, wire: npt.NDArray[Any]) -> None:
        """These were all lanes for now: put their sum on the wire, where it is not there yet. More may follow."""

    def finish(self, wire: npt.NDArray[Any], step: int) -> Any | None:
        """The tree of sums, or None if the round must be done again."""


class NotFinite(JobError):
    """A sum holds NaN or Inf."""


class FloatSums:
    """Float32 sums: quick, and equal up to rounding whatever the order."""

    wide = 4
    packed = 0

    def __init__(self, layout: Layout, lanes: int) -> None:
        del lanes
        self.layout = layout
        self.wire_size = layout.size

    def add(self, wire: npt.NDArray[Any], tree: Any, *, first: bool) -> None:
        """Add one lane's gradients."""
        self.layout.add(tree, wire, first=first)

    def put(self, wire: npt.NDArray[Any]) -> None:
        """It is there."""

    def finish(self, wire: npt.NDArray[Any], step: int) -> Any | None:
        """The tree of sums."""
        _check_whole(self.layout, self._parts(wire), step)
        return self.layout.unpack(wire)

    def check(self, wire: npt.NDArray[Any], step: int) -> None:
        """Raise `NotFinite` if a sum is."""
        _refuse(self.layout, [i for i, part in enumerate(self._parts(wire)) if not np.isfinite(part).all()], step)
        _check_narrow(self.layout, self._parts(wire), step)

    def _parts(self, wire: npt.NDArray[Any]) -> Iterable[npt.NDArray[Any]]:
        """The leaves of a total, as float32."""
        return self.layout.parts(wire)


class Bf16Sums(FloatSums):
    """Float32 sums of a worker's lanes in memory of its own, of which large leaves travel as bf16.

        │ large leaves, two numbers in the place of one float32 │ small leaves and whole numbers, as float32 │

    So lanes lose nothing to each other, and adding more after the sum was put on the wire does not either.
    """

    def __init__(self, layout: Layout, lanes: int) -> None:
        super().__init__(layout, lanes)
        sizes = [leaf.size for leaf in layout.leaves if _travels_as_bf16(leaf)]
        self.packed = -(-sum(sizes) // 2)
        self.wire_size = self.packed + layout.size - sum(sizes)
        self._sums = np.empty(layout.size, np.float32)

    def add(self, wire: npt.NDArray[Any], tree: Any, *, first: bool) -> None:
        """Add one lane's gradients."""
        del wire
        self.layout.add(tree, self._sums, first=first)

    def put(self, wire: npt.NDArray[Any]) -> None:
        """Round what was added."""
        for begin, place in zip(self.layout.bounds, self._places(wire), strict=False):
            mine = self._sums[begin : begin + len(place)]
            if place.dtype == np.uint16:
                bf16.put(mine, place)
            else:
                place[:] = mine

    def finish(self, wire: npt.NDArray[Any], step: int) -> Any | None:
        """The tree of sums."""
        sums = [*self._parts(wire)]
        _check_whole(self.layout, sums, step)
        return self.layout.rebuild(sums)

    def _parts(self, wire: npt.NDArray[Any]) -> Iterator[npt.NDArray[np.float32]]:
        """The leaves of a total, as new arrays."""
        for place in self._places(wire):
            sums = np.empty(len(place), np.float32)
            if place.dtype == np.uint16:
                bf16.take(place, sums)
            else:
                sums[:] = place
            yield sums

    def _places(self, wire: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
        """Where each leaf lies on the wire: uint16 where it is bf16."""
        halves, rest = wire[: self.packed].view(np.uint16), wire[self.packed :]
        for leaf in self.layout.leaves:
            if _travels_as_bf16(leaf):
                yield halves[: leaf.size]
                halves = halves[leaf.size :]
            else:
                yield rest[: leaf.size]
                rest = rest[leaf.size :]


def _travels_as_bf16(leaf: Leaf) -> bool:
    return leaf.size >= SMALL and not leaf.whole


class ExactSums:
    """Sums that do not depend on order or on how many workers there are, bit for bit."""

    wide = -4
    packed = 0

    def __init__(self, layout: Layout, lanes: int) -> None:
        self.layout = layout
        self.exact = Exact([leaf.size for leaf in layout.leaves], lanes)
        self.wire_size = self.exact.wire_size

    def add(self, wire: npt.NDArray[Any], tree: Any, *, first: bool) -> None:
        """Add one lane's gradients, each rounded to the common grid."""
        if first:
            wire[:] = 0
        for leaf, array in enumerate(self.layout.arrays(tree)):
            self.exact.add(wire, array.astype(np.float32, copy=False), leaf)

    def put(self, wire: npt.NDArray[Any]) -> None:
        """It is there."""

    def finish(self, wire: npt.NDArray[Any], step: int) -> Any | None:
        """The tree of sums; None where the grid was too fine and has been widened."""
        outcome = self.exact.finish(np.ascontiguousarray(wire))
        _refuse(self.layout, outcome.bad, step)
        if outcome.sums is None:
            return None
        _check_whole(self.layout, self.layout.parts(outcome.sums), step)
        _check_narrow(self.layout, self.layout.parts(outcome.sums), step)
        return self.layout.unpack(outcome.sums)


def _refuse(layout: Layout, bad: Sequence[int], step: int) -> None:
    if bad:
        names = ", ".join(repr(layout.leaves[leaf].name) for leaf in bad)
        raise NotFinite(
            f"step {step}: {names} holds NaN or Inf in some lane, so there is no sum: lower the learning rate, or give "
            "mm.Job(nonfinite='skip') to leave such steps out"
        )


def _check_whole(layout: Layout, parts: Iterable[npt.NDArray[Any]], step: int) -> None:
    """Raise where a leaf's own type of whole numbers cannot hold its sum."""
    for leaf, part in zip(layout.leaves, parts, strict=True):
        if not leaf.whole:
            continue
        low, high = int(part.min(initial=0)), int(part.max(initial=0))
        if low < np.iinfo(leaf.dtype).min or high > np.iinfo(leaf.dtype).max:
            raise JobError(
                f"step {step}: the sum of {leaf.name!r} reaches from {low} to {high}, which its type {leaf.dtype} "
                "cannot hold: return a wider type, such as int32"
            )


def _check_narrow(layout: Layout, parts: Iterable[npt.NDArray[Any]], step: int) -> None:
    """Raise `NotFinite` where a finite sum is Inf in its leaf's own type, one narrower than float32."""
    for leaf, part in zip(layout.leaves, parts, strict=True):
        if leaf.whole or leaf.dtype.itemsize >= part.dtype.itemsize:
            continue
        with np.errstate(over="ignore"):
            held = np.isfinite(part.astype(leaf.dtype)).all()
        if not held:
            raise NotFinite(
                f"step {step}: the sum of {leaf.name!r} is too large for its type {leaf.dtype}, so there is none: "
                "return float32, or give mm.Job(nonfinite='skip') to leave such steps out"
            )


KINDS: dict[str, type[FloatSums] | type[ExactSums]] = {"float": FloatSums, "exact": ExactSums}
