"""A world of one: what `Job` talks to outside `meshmend run`, and in a job that the run has done already."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError
from meshmend.job.faults import Fault, Point
from meshmend.job.frameworks.base import Accumulator
from meshmend.job.protocol import Total
from meshmend.job.reduction.footer import Word
from meshmend.job.state.digest import Later
from meshmend.telemetry import Epoch, Patience, always


class Solo:
    """Every lane is computed here."""

    alone = True
    first = True
    joined: frozenset[int] = frozenset()
    """Who joined with the last sum: nobody has."""
    wanted = 1
    epoch = Epoch(0, 0, 0)

    def __init__(self, lanes: int) -> None:
        self._wires: list[npt.NDArray[Any]] = []
        """For each sum of a step."""
        self.account = Total([1] * lanes, {0: 0}, 0, [0] * lanes)
        self.messages, self.room = (
            SimpleNamespace(note=str, digests=lambda: None, reading=nullcontext, settle=lambda: None),
            SimpleNamespace(),
        )
        """No other worker sums with this one or gets a message."""
        self.save: Callable[[], bool] = lambda: True
        """No run is halted, so it is not called."""
        self.mine = tuple(range(lanes))
        """The lanes that this worker computed last."""

    @property
    def founders(self) -> int:
        """How many workers count as there from the beginning."""
        return self.wanted

    def share(self, job: int, export: Callable[[bool], list[Any]]) -> Any | None:
        """Return None: no other worker has a state to give."""
        del job, export
        return None

    def round(self, prepare: Callable[[Any], Accumulator], turn: int = 0) -> Generator[int, Any, Any]:
        """All lanes of a round, in order: yields their numbers, is sent their trees, returns the total."""
        for lane in range(len(self.account.by)):
            tree = (yield lane).pop()
            sums = prepare(tree)
            if turn == len(self._wires):
                self._wires.append(np.empty(sums.reduction.size, sums.reduction.dtype))
            sums.accumulate(tree, self._wires[turn], first=lane == 0)
        return sums.alone(self._wires[turn])

    def exchange(self, word: Word, data: bytes) -> dict[int, bytes]:
        """Return this worker's data alone."""
        del word
        return {0: data}

    def digested(self, step: int, digest: Later[int], *, final: bool = True) -> None:
        """Do nothing: there is no other state to compare with."""

    def hook(self, made: Callable[..., Any]) -> None:
        """Do nothing: no courier asks for anything."""
        del made

    def record(self, write: Callable[[Epoch, int], None]) -> None:
        """Write nothing: there is no round that others took part in."""
        del write

    def obey(self) -> None:
        """Do nothing: there is no run that could be halted."""

    def end(self, why: str) -> NoReturn:
        """Raise: there are no others that could continue."""
        raise JobError(why)

    def exit_unneeded(self) -> None:
        """Stay: nobody else does this work."""

    def tick(self) -> None:
        """Do nothing: no agent is watching."""

    def strike(self, point: Point) -> Fault | None:
        """Return None: failures are injected only into runs."""
        del point
        return None

    def pause(self) -> AbstractContextManager[None]:
        """Return an empty context: no agent is watching."""
        return nullcontext()

    def waits_for_room(self) -> AbstractContextManager[Patience]:
        """Return an empty context: no agent is watching."""
        return nullcontext(always)

    def leave(self) -> None:
        """Do nothing: there is no other worker to wait for."""


class Passing(Solo):
    """A job that the run has already done: a worker passes through it alone, with its last state."""

    first = False

    def __init__(self, lanes: int, workers: int, rank: int, job: int) -> None:
        super().__init__(lanes)
        self.wanted, self._rank, self._job = workers, rank, job

    def round(self, prepare: Callable[[Any], Accumulator], turn: int = 0) -> Generator[int, Any, Any]:
        """Raise: a job that is over has no more rounds."""
        del prepare, turn
        raise JobError(
            f"job {self._job} of this run is done, and this worker, which joined later, only passes through it; loop "
            "with job.steps or job.epochs, which then yield no steps"
        )
        yield 0  # makes it a generator, like the others

    def exchange(self, word: Word, data: bytes) -> dict[int, bytes]:
        """Return this worker's data alone: the others have moved on."""
        del word
        return {self._rank: data}
