"""Where each leaf of a gradient is in a flat buffer, and what its own type can hold."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError, NotFinite
from meshmend.job.state.tree import Leaves

WHOLE = 2**24
"""Whole numbers up to this one are exact as float32."""

Flat = npt.NDArray[Any]
Rooms = Sequence[Flat | None]
"""For each leaf memory of its size that is free to be overwritten, or none; empty where there is none at all."""


@dataclass(frozen=True)
class Leaf:
    """One array of a gradient."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @cached_property
    def size(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def whole(self) -> bool:
        """Whether it holds integers: they travel as float32, and only where their sums stay exact."""
        return self.dtype.kind in "iu"


class Layout:
    """The leaves of a gradient, one after another; leaves that cannot be summed are refused by name."""

    def __init__(self, leaves: Leaves, lanes: int = 1, *, on_device: bool = False) -> None:
        self.leaves = [Leaf(name, tuple(value.shape), np.dtype(value.dtype)) for name, value in leaves]
        self.on_device = on_device
        self._most = WHOLE // lanes
        for leaf in self.leaves:
            # bf16 and smaller floats have no kind in numpy.
            if leaf.dtype.kind not in "iuf" and not leaf.dtype.name.startswith(("bfloat", "float")):
                raise JobError(
                    f"leaf {leaf.name!r} has type {leaf.dtype}, which cannot be summed; return real numbers, such as "
                    "float32 (a complex leaf as two of them)"
                )
        self.bounds = np.concatenate([[0], np.cumsum([leaf.size for leaf in self.leaves])]).astype(np.int64)

    @property
    def size(self) -> int:
        """How many numbers all leaves hold."""
        return int(self.bounds[-1])

    @property
    def number(self) -> int:
        """A number that differs where the names, shapes or types of the leaves do; it is odd for those on a device."""
        return zlib.crc32(repr(self.leaves).encode()) & ~1 | self.on_device

    def match(self, leaves: Sequence[tuple[str, Any]]) -> None:
        """Refuse a lane with other names, shapes or types than the first lane's; checks nothing else."""
        if [name for name, _ in leaves] != [leaf.name for leaf in self.leaves]:
            raise JobError(
                f"a lane returned the leaves {[name for name, _ in leaves]}, but the first one returned "
                f"{[leaf.name for leaf in self.leaves]}; return the same tree for every lane"
            )
        for leaf, (_, array) in zip(self.leaves, leaves, strict=True):
            if array.shape != leaf.shape or array.dtype != leaf.dtype:
                raise JobError(
                    f"leaf {leaf.name!r} has shape {array.shape} and type {array.dtype}, but began with {leaf.shape} "
                    f"and {leaf.dtype}; return the same shapes and types for every lane"
                )

    def arrays(self, leaves: Leaves) -> Iterator[Flat]:
        """The leaves of another lane as flat arrays."""
        self.match(leaves)
        for leaf, (_, array) in zip(self.leaves, leaves, strict=True):
            if leaf.whole:
                self.check_whole(leaf, int(max(array.max(initial=0), -int(array.min(initial=0)))))
            yield array.reshape(-1)

    def check_whole(self, leaf: Leaf, largest: float) -> None:
        """Refuse a lane's integers whose sum may not be exact."""
        if largest > self._most:
            raise JobError(
                f"leaf {leaf.name!r} holds an integer beyond {self._most}; the sum over all lanes must stay within "
                f"{WHOLE} to be exact, so return it as float32"
            )

    def add(self, arrays: Iterable[Flat], out: Flat, *, first: bool) -> None:
        """Add flat arrays to a flat buffer; the first lane overwrites it, so it need not be zeroed."""
        for begin, array in zip(self.bounds, arrays, strict=False):
            place = out[begin : begin + len(array)]
            if first:
                np.copyto(place, array, casting="unsafe")
            else:
                place += array.astype(place.dtype, copy=False)

    def parts(self, flat: Flat) -> Iterator[Flat]:
        """The leaves of a flat buffer, as views of it."""
        for begin, end in pairwise(self.bounds):
            yield flat[begin:end]

    def shaped(self, parts: Iterable[Flat], *, copy: bool, rooms: Rooms = ()) -> list[Flat]:
        """Flat arrays in the leaves' own shapes and types; `copy` where they are views of a buffer.

        `rooms` are arrays that may be overwritten: a leaf goes into its own, if that has its shape and type.
        """
        found = []
        for leaf, part, room in zip_longest(self.leaves, parts, rooms):
            if room is None or room.shape != leaf.shape or room.dtype != leaf.dtype or not copy:
                found.append(part.astype(leaf.dtype, copy=copy).reshape(leaf.shape))
            else:
                np.copyto(room, part.reshape(leaf.shape), casting="unsafe")
                found.append(room)
        return found

    def check_finite(self, bad: Sequence[int], step: int) -> None:
        """Raise `NotFinite` if there are leaves with NaN or Inf, given by their indices."""
        if bad:
            names = ", ".join(repr(self.leaves[leaf].name) for leaf in bad)
            raise NotFinite(step, f"{names} holds NaN or Inf in some lane", "lower the learning rate")

    def check_integers(self, parts: Iterable[Flat], step: int) -> None:
        """Raise where the integer type of a leaf cannot hold its sum."""
        for leaf, part in zip(self.leaves, parts, strict=True):
            if not leaf.whole:
                continue
            self.check_span(leaf, int(part.min(initial=0)), int(part.max(initial=0)), step)

    def check_span(self, leaf: Leaf, low: int, high: int, step: int) -> None:
        """Raise where the integer type of a leaf cannot hold sums from `low` to `high`."""
        if low < np.iinfo(leaf.dtype).min or high > np.iinfo(leaf.dtype).max:
            raise JobError(
                f"step {step}: the sum of {leaf.name!r} ranges from {low} to {high}, which its type {leaf.dtype} "
                "cannot hold; return a wider type, such as int32"
            )

    def check_range(self, parts: Iterable[Flat], step: int) -> None:
        """Raise `NotFinite` where a finite sum is Inf in its leaf's own type, one narrower than float32."""
        for leaf, part in zip(self.leaves, parts, strict=True):
            if leaf.whole or leaf.dtype.itemsize >= part.dtype.itemsize:
                continue
            with np.errstate(over="ignore"):
                held = np.isfinite(part.astype(leaf.dtype)).all()
            if not held:
                raise self.too_large(leaf, step)

    def too_large(self, leaf: Leaf, step: int) -> NotFinite:
        """The error of a sum that is Inf in its leaf's own type."""
        return NotFinite(step, f"the sum of {leaf.name!r} is too large for its type {leaf.dtype}", "return float32")
