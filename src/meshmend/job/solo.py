"""A world of one: what `Job` talks to outside `meshmend run`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.job.faults.faults import Fault
from meshmend.job.protocol import Total
from meshmend.job.reduction.sums import ExactSums, FloatSums


class Solo:
    """Every lane is computed here."""

    first = True
    wanted = 1
    _wire: npt.NDArray[Any] | None = None

    def __init__(self, lanes: int) -> None:
        self.account = Total([1] * lanes, {0: 0}, 0, [0] * lanes)
        self.mine = tuple(range(lanes))
        """The lanes that this worker was asked for last."""

    def share(self, export: Callable[[], list[Any]]) -> Any | None:
        """Nobody else is there."""
        del export
        return None

    def round(self, prepare: Callable[[Any], FloatSums | ExactSums]) -> Generator[int, Any, Any]:
        """All lanes of a round, in order: yields their numbers, is sent their trees, returns the total."""
        for lane in range(len(self.account.by)):
            tree = yield lane
            sums = prepare(tree)
            if self._wire is None:
                self._wire = np.empty(sums.wire_size, np.int32 if sums.wide < 0 else np.float32)
            sums.add(self._wire, tree, first=lane == 0)
        assert self._wire is not None, "there is at least one lane"
        sums.put(self._wire)
        return self._wire

    def digested(self, step: int, digest: int) -> None:
        """Nobody to compare with."""

    def strike(self, point: str) -> Fault | None:
        """Failures on purpose are for runs."""
        del point
        return None

    def pause(self) -> AbstractContextManager[None]:
        """Nobody is watching."""
        return nullcontext()

    def leave(self) -> None:
        """Nobody to wait for."""
