"""The user's side of training: five words round an ordinary loop.

    with mm.Job(data, batch=512, lanes=32) as job:
        state = job.share(init())
        for step in job.steps(1000):
            grads, loss = job.sum(lambda lane: grad_fn(state, lane))
            state = update(state, grads)
            job.commit(state)

Under `meshmend run` the sums are over all workers, and the loop never sees a failure: `job.sum` calls the function
again for the lanes of the dead. With plain `python` it is a world of one, and the same script just runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import numpy as np

from meshmend.errors import JobError
from meshmend.train.lanes import Lanes
from meshmend.train.linked import Linked
from meshmend.train.segment import MOST_LANES
from meshmend.train.state import from_bytes, seal_of, to_bytes
from meshmend.train.sums import KINDS, ExactSums, FloatSums
from meshmend.train.wire import Layout


class Job:
    """A training job over random-access data (`len(data)`, `data[ids]`; tuples and dicts of arrays are columns)."""

    def __init__(self, data: Any, batch: int, lanes: int, *, seed: int = 0, reduction: str = "float") -> None:
        if reduction not in KINDS:
            raise JobError(f"reduction={reduction!r}: choose from {', '.join(KINDS)}")
        if lanes > MOST_LANES:
            raise JobError(f"{lanes} lanes were asked for: at most {MOST_LANES} are possible")
        columns = data.values() if isinstance(data, dict) else data if isinstance(data, tuple) else [data]
        sizes = {len(column) for column in columns}
        if len(sizes) != 1:
            raise JobError(f"the columns of the data have {sorted(sizes)} samples: they must have the same number")
        self._data = data
        self._lanes = Lanes(sizes.pop(), batch, lanes, seed)
        self._reduction = reduction
        self._sums: FloatSums | ExactSums | None = None
        self._state: Any = None
        self._step = 0
        self._grid: list[int] = []
        self._link: Alone | Linked = Linked(lanes) if "MESHMEND_RUN" in os.environ else Alone()

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._link.leave()

    @property
    def batch(self) -> int:
        """Samples in a step, over all workers: divide sums by this for means."""
        return self._lanes.batch

    def share(self, state: Any) -> Any:
        """Begin with this state; all workers get the same one, and newcomers that of a survivor."""
        self._state = state
        self._seal()
        given = self._link.share(lambda: self._export(self._state))
        if given is not None:
            self._state = self._adopt(given, state)
            self._seal()
        return self._state

    def steps(self, count: int) -> Iterator[int]:
        """The steps up to `count`, from where the job stands."""
        while self._step < count:
            yield self._step

    def lane(self, lane: int) -> Any:
        """The samples of one lane of this step."""
        ids = self._lanes.ids(self._step, lane)
        if isinstance(self._data, dict):
            return {name: column[ids] for name, column in self._data.items()}
        if isinstance(self._data, tuple):
            return tuple(column[ids] for column in self._data)
        return self._data[ids]

    def sum(self, function: Callable[[Any], Any]) -> Any:
        """The sum of `function(lane)` over all lanes of this step; any tree of arrays, the same for every lane."""

        def compute(lane: int) -> Any:
            return function(self.lane(lane))

        while True:
            total = self._link.round(compute, self._prepare, self._lanes.lanes)
            assert self._sums is not None, "a total cannot come before the first part"
            result = self._sums.finish(total[: self._sums.wire_size], self._step)
            if result is not None:
                return result
            self._seal()  # the grid has changed, so this round has a state of its own

    def commit(self, state: Any) -> None:
        """The step is done, and this is the state after it."""
        self._state = state
        self._step += 1
        self._seal()

    def _seal(self) -> None:
        grid = self._sums.exact.state() if isinstance(self._sums, ExactSums) else np.array(self._grid, np.int16)
        self._link.sealed(seal_of([self._state, grid]))

    def _prepare(self, tree: Any) -> FloatSums | ExactSums:
        if self._sums is None:
            self._sums = KINDS[self._reduction](Layout(tree), self._lanes.lanes)
            if isinstance(self._sums, ExactSums) and self._grid:
                self._sums.exact.restore(np.array(self._grid, np.int16))
        return self._sums

    def _export(self, state: Any) -> bytes:
        grid = self._sums.exact.state().tolist() if isinstance(self._sums, ExactSums) else self._grid
        return to_bytes(state, step=self._step, grid=grid)

    def _adopt(self, data: bytes, like: Any) -> Any:
        # How large the grid must be shows only with the first gradients: it is kept aside until then.
        state, about = from_bytes(data, like)
        self._step, self._grid = about["step"], about["grid"]
        return state


class Alone:
    """A world of one: every lane is computed here."""

    def share(self, export: Callable[[], bytes]) -> bytes | None:
        """Nobody else is there."""
        del export
        return None

    def round(self, compute: Callable[[int], Any], prepare: Callable[[Any], FloatSums | ExactSums], lanes: int) -> Any:
        """All lanes of a round, in order."""
        wire = None
        for lane in range(lanes):
            tree = compute(lane)
            sums = prepare(tree)
            if wire is None:
                wire = np.zeros(sums.wire_size, np.int32 if sums.wide < 0 else np.float32)
            sums.add(wire, tree)
        return wire

    def sealed(self, seal: int) -> None:
        """Nobody to compare with."""

    def leave(self) -> None:
        """Nobody to wait for."""
