"""Lanes that are added up where they were computed: what the accumulators of all devices have in common.

A library adds what only it can do (`Sums`): keep the sum of the lanes, make a message of it, take a message apart.
Nothing waits for the device here except where a decision depends on its numbers: NaN and Inf, if the job checks for
them, and the notes of exact sums. Whether integers stayed exact is requested now and checked one step later.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError
from meshmend.job.frameworks.base import Accumulator
from meshmend.job.reduction.base import Flat, Reduction
from meshmend.job.reduction.layout import Layout

Array = Any
"""An array of the library."""
Fetch = Callable[[], npt.NDArray[np.float32]]


class DeviceAccumulator(Accumulator):
    """Adds up lanes on their device."""

    def __init__(self, kind: type[Reduction], leaves: Sequence[tuple[str, Any]], lanes: int) -> None:
        """The leaves of the first lane, each with a shape and a type of numpy."""
        layout = Layout(list(leaves), lanes, on_device=True)
        if not layout.leaves:
            raise JobError(
                "the function given to job.sum returned nothing to sum; return gradients, or share a model and its "
                "optimizer"
            )
        super().__init__(kind(layout, lanes))
        self.layout = layout
        self._whole = [number for number, leaf in enumerate(layout.leaves) if leaf.whole]
        self._narrow = [
            number for number, leaf in enumerate(layout.leaves) if not leaf.whole and leaf.dtype.itemsize < 4
        ]
        self._asked: tuple[int, Fetch] | None = None
        """The step whose integers are to be checked, and how to get them."""
        self.checked = False
        """Whether the last total is known to have neither NaN nor Inf."""

    @abstractmethod
    def sums(self, total: Any, *, check: bool) -> list[Array] | tuple[int, ...] | None:
        """The leaves of a total as float32 on the device; None: repeat the round; indices of leaves with NaN or Inf.

        `check`: those are wanted; the caller looks for them by itself unless `checked` says that there are none.
        """

    @abstractmethod
    def finite(self, sums: list[Array]) -> npt.NDArray[np.bool_]:
        """For each leaf whether all its sums are finite; then the same of narrow leaves in their own type."""

    @abstractmethod
    def spans(self, sums: list[Array]) -> Fetch:
        """Begin to fetch, for each leaf of integers, the largest of any lane, the least sum and the largest."""

    @abstractmethod
    def rebuilt(self, sums: list[Array]) -> Any:
        """The tree of sums, each in the type of its leaf."""

    @abstractmethod
    def release(self) -> None:
        """The round is done: hold the lanes' arrays no longer."""

    def alone(self, buffer: Flat) -> Any:
        """Nothing leaves the device."""
        del buffer
        return self

    def finish(self, total: Any, step: int, *, check: bool = False) -> Any | None:
        """The tree of sums, on the device."""
        self.settle()
        self.checked = False
        sums = self.sums(total, check=check)
        if sums is None:
            return None
        if isinstance(sums, tuple):
            self.layout.check_finite(sums, step)
            raise AssertionError("there are leaves with NaN or Inf")
        exact = self.reduction.checks_itself
        if (check and not exact and not (self.checked and not self._narrow)) or (exact and self._narrow):
            found = self.finite(sums)
            self.layout.check_finite(np.flatnonzero(~found[: len(sums)]).tolist(), step)
            for number, held in zip(self._narrow, found[len(sums) :], strict=True):
                if not held:
                    raise self.layout.too_large(self.layout.leaves[number], step)
        if self._whole:
            self._asked = step, self.spans(sums)
        self.release()
        return self.rebuilt(sums)

    def settle(self) -> None:
        """Check the integers of the last step."""
        if self._asked is not None:
            (step, fetch), self._asked = self._asked, None
            for number, (largest, low, high) in zip(self._whole, fetch(), strict=True):
                self.layout.check_whole(self.layout.leaves[number], float(largest))
                self.layout.check_span(self.layout.leaves[number], int(low), int(high), step)
