"""Updates that wait for norms of whole tensors, of which each member holds a few slices.

Such an update is a generator. It yields arrays of its slice, one or several, and gets their norms over all slices back:

    def update(weights, gradients, state):
        norm = yield gradients                 norm.all: of the whole gradient; norm.tensor: of each number's tensor
        …
        return weights, state

The updates of all slices advance together, stage by stage. At each, a holder gives the sums of squares of its blocks,
and gets those of all blocks (`reduction/norms.py`): so the norms have the same bits for any number of workers. What it
gave stays until the next round, since others may ask again when this slice has been updated already.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError
from meshmend.job.protocol import NEVER
from meshmend.job.reduction.norms import Blocks, Norm, Sums
from meshmend.job.reduction.pieces import Pieces

Floats = npt.NDArray[np.float32]
Work = Generator[Any, Any, tuple[Any, Any]]
"""An update at work: yields arrays, is sent their norms, returns weights and state."""


@dataclass(frozen=True)
class Norms:
    """Of one array that was yielded, as all slices have it."""

    all: np.float32
    by_leaf: npt.NDArray[np.float32]

    def of(self, pieces: Pieces) -> Norm:
        """As the update of one slice gets it."""
        return Norm(self.all, pieces.spread(self.by_leaf))


class Stages:
    """The updates of one round on one member, and what they asked for."""

    def __init__(self, blocks: Blocks, wants: Sequence[int]) -> None:
        self._blocks, self._wants = blocks, tuple(wants)
        self.round = NEVER
        self.table: Sums = np.zeros((len(wants), max(wants, default=0), blocks.count))
        """By stage, array and block: the sums of squares of slices that are here, and 0 for those that are not."""
        self._work: dict[int, tuple[Work, Pieces]] = {}
        self._done: dict[int, int] = {}
        """How many stages of a slice have been measured."""
        self._norms: dict[int, tuple[Norms, ...]] = {}

    def begin(self, round: int) -> None:
        """Nothing has been measured in this round; unless it has."""
        if round != self.round:
            self.round, self._work, self._done, self._norms = round, {}, {}, {}
            self.table[:] = 0

    def measure(self, number: int, stage: int, first: int, start: Callable[[], tuple[Work, Pieces]]) -> None:
        """Measure a slice, whose first block this is, at a stage, if that is not done."""
        if self._done.get(number, 0) > stage:
            return
        if stage == 0:
            self._work[number] = start()
        work, _ = self._work[number]
        try:
            found = next(work) if stage == 0 else work.send(self._answer(number, stage))
        except StopIteration:
            raise _uneven(stage, self._wants) from None
        arrays = found if isinstance(found, tuple) else (found,)
        if len(arrays) != self._wants[stage]:
            raise _uneven(stage, self._wants)
        for which, array in enumerate(arrays):
            squares = self._blocks.squares(np.asarray(array, np.float32).reshape(-1), first)
            self.table[stage, which, first : first + len(squares)] = np.nan_to_num(squares, nan=np.inf)
        self._done[number] = stage + 1

    def measured(self, stage: int, squares: Sums) -> None:
        """These are the sums of squares of all blocks."""
        made = []
        for which in range(self._wants[stage]):
            by_leaf = np.sqrt(self._blocks.by_leaf(squares[which])).astype(np.float32)
            made.append(Norms(np.float32(np.sqrt(self._blocks.in_all(squares[which]))), by_leaf))
        self._norms[stage] = tuple(made)

    def finish(self, number: int) -> tuple[Any, Any]:
        """The new weights and state of a slice."""
        work, _ = self._work[number]
        try:
            work.send(self._answer(number, len(self._wants)))
        except StopIteration as end:
            del self._work[number]
            found: tuple[Any, Any] = end.value
            return found
        raise _uneven(len(self._wants), self._wants)

    def _answer(self, number: int, stage: int) -> Any:
        """What the generator is sent that waits for the norms of the stage before."""
        norms = [one.of(self._work[number][1]) for one in self._norms[stage - 1]]
        return norms[0] if len(norms) == 1 else tuple(norms)


def _uneven(stage: int, wants: Sequence[int]) -> JobError:
    return JobError(
        f"the update of a slice asked for different norms than when meshmend tried it ({list(wants)} arrays at its "
        f"stages, and others at stage {stage}); yield the same arrays in every step and for every slice"
    )
