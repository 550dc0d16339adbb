"""Samples read ahead by other processes, for a wrapped loop whose lanes are known only when they are requested."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from meshmend.job.data.source import samples
from meshmend.job.frameworks.base import LoopJob
from meshmend.job.frameworks.torch import rng
from meshmend.job.frameworks.torch.sampler import Sampler


class Loader(Sampler):
    """The job's data for a wrapped loop, read ahead by other processes: replaces both sampler and `DataLoader`.

    They read the lanes that this worker will most likely compute. A lane that turns out not to be needed is dropped,
    and one that was not read, such as a dead worker's, is read here. Either way a sample drawn with random numbers is
    the same, because they depend on seed, step and lane. `options` are those of `DataLoader`.
    """

    def __init__(self, job: LoopJob, num_workers: int = 2, **options: Any) -> None:
        super().__init__(job)
        self._options = {"num_workers": num_workers, **options}

    def __iter__(self) -> Iterator[Any]:
        drawn, emitted = _Seeded(self._job), deque[tuple[int, int]]()
        ahead = torch.utils.data.DataLoader(
            drawn, batch_size=None, sampler=_Forecast(self._job, self, emitted), collate_fn=_as_it_is, **self._options
        )
        pipe = iter(ahead)
        for _ in super().__iter__():
            lane = self.loop.lane
            assert lane is not None, "it was begun just now"
            wanted = self._job.step, lane
            while emitted and emitted[0] < wanted:
                emitted.popleft()
                next(pipe)
            if emitted and emitted[0] == wanted:
                emitted.popleft()
                yield next(pipe)
            else:
                kept = rng.states()
                found = drawn[wanted]
                rng.restore(kept)
                yield found


class _Forecast:
    """The lanes that this worker will most likely be asked for in this epoch: the same ones as last."""

    def __init__(self, job: LoopJob, loader: Loader, emitted: deque[tuple[int, int]]) -> None:
        self._job, self._loader, self._emitted = job, loader, emitted

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for step in range(self._loader.loop.done, self._loader.bounds()[1]):
            for lane in self._job.training.mine:
                self._emitted.append((step, lane))
                yield step, lane


class _Seeded:
    """Samples by step and lane, drawn with random numbers of that lane's own."""

    def __init__(self, job: LoopJob) -> None:
        # Not the job itself: this object is sent to the processes that read ahead.
        self._lanes, self._data = job.training.lanes, job.training.data

    def __getitem__(self, place: tuple[int, int]) -> Any:
        rng.seed((self._lanes.seed, *place, 1))
        return samples(self._data, self._lanes.ids(*place))


def _as_it_is(batch: Any) -> Any:
    return batch
