"""Two ways to add up lanes: plain floats, or exactly. Both work on one flat buffer of the wire's kind of number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError
from meshmend.train.exact import Exact
from meshmend.train.wire import Layout


class Sums(Protocol):
    """How lanes are added, and what a total says."""

    wire_size: int
    wide: int
    """Bytes of a number on the wire; negative for integers."""

    def add(self, wire: npt.NDArray[Any], tree: Any, *, first: bool) -> None:
        """Add one lane's gradients; the first ones are written over what is there."""

    def finish(self, wire: npt.NDArray[Any], step: int) -> Any | None:
        """The tree of sums, or None if the round must be done again."""


class NotFinite(JobError):
    """A sum holds NaN or Inf."""


class FloatSums:
    """Float32 sums: quick, and equal up to rounding whatever the order."""

    wide = 4

    def __init__(self, layout: Layout, lanes: int) -> None:
        del lanes
        self.layout = layout
        self.wire_size = layout.size

    def add(self, wire: npt.NDArray[Any], tree: Any, *, first: bool) -> None:
        """Add one lane's gradients."""
        self.layout.add(tree, wire, first=first)

    def finish(self, wire: npt.NDArray[Any], step: int) -> Any | None:
        """The tree of sums."""
        del step
        return self.layout.unpack(wire)

    def check(self, wire: npt.NDArray[Any], step: int) -> None:
        """Raise `NotFinite` if a sum is."""
        bounds = self.layout.bounds
        bad = [i for i in range(len(bounds) - 1) if not np.isfinite(wire[bounds[i] : bounds[i + 1]]).all()]
        _refuse(self.layout, bad, step)


class ExactSums:
    """Sums that do not depend on order or on how many workers there are, bit for bit."""

    wide = -4

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

    def finish(self, wire: npt.NDArray[Any], step: int) -> Any | None:
        """The tree of sums; None where the grid was too fine and has been widened."""
        outcome = self.exact.finish(np.ascontiguousarray(wire))
        _refuse(self.layout, outcome.bad, step)
        return None if outcome.sums is None else self.layout.unpack(outcome.sums)


def _refuse(layout: Layout, bad: Sequence[int], step: int) -> None:
    if bad:
        names = ", ".join(repr(layout.leaves[leaf].name) for leaf in bad)
        raise NotFinite(
            f"step {step}: {names} holds NaN or Inf in some lane, so there is no sum: lower the learning rate, or give "
            "mm.Job(nonfinite='skip') to leave such steps out"
        )


KINDS: dict[str, type[FloatSums] | type[ExactSums]] = {"float": FloatSums, "exact": ExactSums}
