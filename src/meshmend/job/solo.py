"""A world of one: what `Job` talks to outside `meshmend run`, and in a job that the run has done already."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError
from meshmend.job.faults import Fault, Point
from meshmend.job.frameworks.base import Accumulator
from meshmend.job.protocol import Total
from meshmend.job.state.digest import Later
from meshmend.telemetry import Epoch


class Solo:
    """Every lane is computed here."""

    first = True
    wanted = 1
    epoch = Epoch(0, 0, 0)
    _wire: npt.NDArray[Any] | None = None

    def __init__(self, lanes: int) -> None:
        self.account = Total([1] * lanes, {0: 0}, 0, [0] * lanes)
        self.places, self.room = SimpleNamespace(note=str), SimpleNamespace()
        """Nobody sums with this worker, or is sent a message."""
        self.mine = tuple(range(lanes))
        """The lanes that this worker was asked for last."""

    def share(self, job: int, export: Callable[[bool], list[Any]]) -> Any | None:
        """Nobody else is there."""
        del job, export
        return None

    def round(self, prepare: Callable[[Any], Accumulator]) -> Generator[int, Any, Any]:
        """All lanes of a round, in order: yields their numbers, is sent their trees, returns the total."""
        for lane in range(len(self.account.by)):
            tree = yield lane
            sums = prepare(tree)
            if self._wire is None:
                self._wire = np.empty(sums.reduction.size, sums.reduction.dtype)
            sums.accumulate(tree, self._wire, first=lane == 0)
        assert self._wire is not None, "there is at least one lane"
        return sums.alone(self._wire)

    def exchange(self, data: bytes) -> dict[int, bytes]:
        """Nobody else brings anything."""
        return {0: data}

    def digested(self, step: int, digest: Later[int]) -> None:
        """Nobody to compare with."""

    def tick(self) -> None:
        """Nobody is watching."""

    def strike(self, point: Point) -> Fault | None:
        """Failures on purpose are for runs."""
        del point
        return None

    def pause(self) -> AbstractContextManager[None]:
        """Nobody is watching."""
        return nullcontext()

    def waits_for_room(self) -> AbstractContextManager[None]:
        """Nobody is watching."""
        return nullcontext()

    def leave(self) -> None:
        """Nobody to wait for."""


class Passing(Solo):
    """A job that the run has done already: a worker passes through it with its last state, alone."""

    first = False

    def __init__(self, lanes: int, workers: int, rank: int, job: int) -> None:
        super().__init__(lanes)
        self.wanted, self._rank, self._job = workers, rank, job

    def round(self, prepare: Callable[[Any], Accumulator]) -> Generator[int, Any, Any]:
        """There is none."""
        del prepare
        raise JobError(
            f"job {self._job} of this run is done, and this worker, which came later, only passes through it; loop "
            "with job.steps or job.epochs, which have no more steps then"
        )
        yield 0  # what makes it a generator, like the others

    def exchange(self, data: bytes) -> dict[int, bytes]:
        """The others have gone on."""
        return {self._rank: data}
