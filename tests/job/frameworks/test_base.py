"""The seam between a job and a framework: lanes may be accumulated anywhere, as long as the part is exported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshmend as mm
from meshmend.job import job as module
from meshmend.job.frameworks.arrays import TreeState
from meshmend.job.frameworks.base import Accumulator, HostAccumulator
from meshmend.job.reduction.base import Flat, Reduction
from meshmend.job.state.tree import digest_of

X = np.arange(24, dtype=np.float32)


class Device(Accumulator):
    """Keeps the sum of the lanes in memory of its own, and touches the buffer only when it is exported."""

    def __init__(self, host: HostAccumulator) -> None:
        super().__init__(host.reduction)
        self._host, self._sum = host, np.zeros(1, np.float32)
        self.exports = 0

    def accumulate(self, tree: Any, buffer: Flat, *, first: bool) -> None:
        buffer[:] = -7  # nothing may rely on it before the export
        self._sum = tree if first else self._sum + tree

    def export(self, buffer: Flat) -> None:
        buffer[:] = self._sum
        self.exports += 1

    def finish(self, total: Any, step: int, *, check: bool = False) -> Any | None:
        return self._host.finish(total, step, check=check)


class OnDevice(TreeState):
    """A state whose lanes and digest are the device's own."""

    made: Device | None = None
    digests = 0

    def accumulator(self, kind: type[Reduction], tree: Any, lanes: int) -> Accumulator:
        self.made = Device(HostAccumulator(self, kind, tree, lanes))
        return self.made

    def digest(self, *more: Any) -> int:
        self.digests += 1
        return digest_of([("device", self.tree), *(("", array) for array in more)])


def test_lanes_may_be_accumulated_and_digested_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[OnDevice] = []

    def framework_of(state: tuple[Any, ...]) -> OnDevice:
        made.append(OnDevice(state[0]))
        return made[0]

    monkeypatch.setattr(module, "framework_of", framework_of)
    with mm.Job(X, batch=8, lanes=4) as job:
        state = job.share(np.zeros(1, np.float32))
        for _ in job.steps(3):
            state = state + job.sum(lambda lane: lane.sum(keepdims=True))
            job.commit(state)
    assert state == X.sum()
    assert made[0].made is not None and made[0].made.exports == 3
    assert made[0].digests == 4  # the first state, and one after every step


def test_a_tree_of_arrays_is_taken_apart_and_put_together() -> None:
    state = TreeState({"b": np.ones(2), "a": [np.zeros(3, np.int32)]})
    before = state.digest()
    assert [name for name, _ in state.leaves()] == ["a.0", "b"]
    snapshot = state.snapshot()
    state.tree["b"][0] = 5
    assert state.digest() != before
    state.adopt(snapshot)
    assert state.digest() == before and state.shared["b"].tolist() == [1, 1]
    with pytest.raises(mm.JobError, match="2 states"):
        state.commit((1, 2))
