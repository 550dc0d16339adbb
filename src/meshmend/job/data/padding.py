"""Samples of different lengths, padded to one of a few: so few shapes are ever compiled.

The length of a lane is the least of these that its longest sample fits into: a function of its samples alone, so the
same on every worker. Where the lengths of all samples are known beforehand, the samples of a step are dealt to its
lanes by length (`Lanes`), and little is padded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError
from meshmend.job.data.source import collated
from meshmend.job.state.tree import plain_leaves, plain_rebuilt


@dataclass(frozen=True)
class Padding:
    """To which lengths which arrays are padded."""

    lengths: tuple[int, ...]
    names: tuple[str, ...]
    """The arrays whose first dimension varies; all that have one if none is named."""
    value: float = 0

    def __post_init__(self) -> None:
        if not self.lengths or list(self.lengths) != sorted({*self.lengths}) or self.lengths[0] < 1:
            raise JobError(f"pad got {list(self.lengths)}; give at least one length, in increasing order")

    def padded(self, rows: Sequence[Any]) -> Any:
        """The samples of a lane in arrays of one length, and how long each was: at the end, in a dict as "length"."""
        longest, counts = 0, []
        for row in rows:
            own = {len(array) for name, array in self._varying(row)}
            if len(own) != 1:
                raise JobError(
                    f"the arrays of a sample have lengths {sorted(own)}; name those that vary together in pad"
                    if own
                    else f"a sample has no array to pad; pad got {list(self.names)}"
                )
            counts.append(own.pop())
            longest = max(longest, counts[-1])
        place = bisect_left(self.lengths, longest)
        if place == len(self.lengths):
            raise JobError(
                f"a sample has length {longest}, but the longest length given to pad is {self.lengths[-1]}; add a "
                "longer one, or truncate samples in a map"
            )
        lane = collated([self._filled(row, self.lengths[place]) for row in rows])
        length = np.array(counts, np.int64)
        if isinstance(lane, dict):
            return {**lane, "length": length}
        return (*lane, length) if isinstance(lane, tuple) else (lane, length)

    def _varying(self, row: Any) -> list[tuple[str, npt.NDArray[Any]]]:
        found = [(name, np.asarray(value)) for name, value in plain_leaves(row)]
        return [(name, array) for name, array in found if (name in self.names if self.names else array.ndim)]

    def _filled(self, row: Any, length: int) -> Any:
        varying = {name for name, _ in self._varying(row)}
        return plain_rebuilt(
            row, [self._long(value, length) if name in varying else value for name, value in plain_leaves(row)]
        )

    def _long(self, value: Any, length: int) -> npt.NDArray[Any]:
        array = np.asarray(value)
        out = np.full((length, *array.shape[1:]), self.value, array.dtype)
        out[: len(array)] = array
        return out
