"""Packing by numpy, of arrays and messages in host memory: what `packing_cuda.py` does, where there is no device."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.job.device.base import Memory, Place
from meshmend.job.reduction.base import Reduction
from meshmend.job.reduction.exact import ExactResult
from meshmend.job.reduction.packing import Addresses, Packing, grid_of, slices_of

Floats = npt.NDArray[np.float32]


class PlainPacking(Packing):
    """For a memory whose views are arrays of numpy."""

    def __init__(self, memory: Memory, reduction: Reduction) -> None:
        super().__init__(reduction)
        self._memory, self._grid = memory, grid_of(reduction)
        self._wire = reduction.wire_format(0)

    def pack(self, leaves: Addresses, part: Place, *, first: bool) -> None:
        """As the reduction does it on the host."""
        message = self._view(part)
        arrays = [_array(address, size) for address, size in zip(leaves, self.sizes.tolist(), strict=True)]
        with np.errstate(all="ignore"):  # a device does not warn about Inf and NaN
            if self._grid is None:
                self.layout.add(arrays, message, first=first)
                return
            if first:
                message[:] = 0
            for leaf, array in enumerate(arrays):
                self._grid.add(message, array, leaf)

    def unpack(
        self, parts: Sequence[Place], leaves: Addresses, *, sliced: int, check: bool, soon: Sequence[int] = ()
    ) -> ExactResult | None:
        """Add up, and copy: all of it at once."""
        del soon
        total = np.empty(self.size, self._wire.kind.dtype)
        with np.errstate(all="ignore"):
            if sliced:
                for part, one in slices_of(parts, sliced):
                    total[one] = self._view(part)[one]
            else:
                self._wire.combine([self._view(part) for part in parts], total)
        against: ExactResult | None = None
        if self._grid is not None:
            outcome = self._grid.finish(total)
            if outcome.sums is None:
                return outcome
            total = outcome.sums
        elif check:
            bad = [leaf for leaf, part in enumerate(self.layout.parts(total)) if not np.isfinite(part).all()]
            against = ExactResult(None, bad=tuple(bad)) if bad else None
        for address, part in zip(leaves, self.layout.parts(total), strict=True):
            _array(address, len(part))[:] = part
        return against

    def _view(self, place: Place) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = self._memory.view(place, self.size, self._wire)
        return found


def _array(address: int, size: int) -> Floats:
    """The numbers at an address."""
    if not size:
        return np.empty(0, np.float32)
    return np.ctypeslib.as_array((ctypes.c_float * size).from_address(address))
