"""Sums in float32: fast, and equal up to rounding whatever the order of the workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from meshmend.job.reduction.base import Flat, NonFinite, Reduction
from meshmend.job.reduction.layout import Rooms


class Float32(Reduction):
    """Lanes are added straight into the message."""

    number = 1
    reduction = "float"
    dtype = np.dtype(np.float32)
    nonfinite = (NonFinite.PASS, NonFinite.ERROR, NonFinite.SKIP)
    sliceable = True

    def add(self, buffer: Flat, arrays: Iterable[Flat], *, first: bool) -> None:
        """Add one lane's gradients."""
        self.layout.add(arrays, buffer, first=first)

    def check(self, total: Flat, step: int) -> None:
        """Raise `NotFinite` if a sum holds NaN or Inf, in float32 or in its own type."""
        bad = [leaf for leaf, part in enumerate(self.parts(total)) if not np.isfinite(part).all()]
        self.layout.check_finite(bad, step)
        self.layout.check_range(self.parts(total), step)

    def finish(self, total: Flat, step: int, rooms: Rooms = ()) -> list[Flat] | None:
        """The summed leaves."""
        self.layout.check_integers(self.parts(total), step)
        return self.layout.shaped(self.parts(total), copy=True, rooms=rooms)

    def parts(self, total: Flat) -> Iterator[Flat]:
        """The leaves of a total, as flat float32."""
        return self.layout.parts(total)
