"""The data of a wrapped loop: PyTorch's datasets by id, lanes in place of its sampler, and prefetched samples.

The lanes of a step are known only when they are requested, so the processes that prefetch are told as late. Data read
with `mm.data` has its own threads for that (`data/feed.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

import torch

from meshmend.errors import JobError
from meshmend.job.data.feed import forecast
from meshmend.job.data.pipeline import Data
from meshmend.job.data.source import samples
from meshmend.job.frameworks.base import LoopJob
from meshmend.job.frameworks.torch import rng
from meshmend.job.frameworks.torch.loop import Loop
from meshmend.job.state.tree import plain_leaves, plain_rebuilt


class Rows:
    """Wraps a dataset that returns one sample at a time as one that takes many ids; `collate` combines the samples."""

    def __init__(self, dataset: Any, collate: Any = None) -> None:
        self._dataset = dataset
        self._collate = collate or torch.utils.data.default_collate

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, ids: Sequence[int]) -> Any:
        if isinstance(self._dataset, torch.utils.data.TensorDataset):
            return [column[torch.as_tensor(ids)] for column in self._dataset.tensors]
        return self._collate([self._dataset[int(one)] for one in ids])


def is_dataset(data: Any) -> bool:
    """Whether this is one of PyTorch's datasets."""
    return isinstance(data, torch.utils.data.Dataset)


class Sampler:
    """The lanes that a wrapped loop is to compute, for `DataLoader(batch_sampler=…)`.

    An epoch holds the steps that begin in it. A worker that joins late, or resumes, finds the earlier epochs empty.
    """

    def __init__(self, job: LoopJob) -> None:
        self._job = job
        self._epoch: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next iteration is; not needed in `for epoch in job.epochs(n)`."""
        self._epoch = epoch

    @property
    def epoch(self) -> int | None:
        """The epoch of the next iteration, as far as that is known."""
        return self._job.training.epoch if self._job.training.epoch is not None else self._epoch

    def __iter__(self) -> Iterator[list[int]]:
        loop = self.loop
        begin, end = self.bounds()
        if loop.done < begin:
            raise JobError(
                f"epoch {self.epoch} begins with step {begin}, but the job is at step {loop.done}; iterate over all "
                "epochs from 0 (those that are done are empty)"
            )
        if loop.done >= end and not loop.within:
            self._job.training.say_repeat(f"epoch {self.epoch} was done")
        while loop.within or loop.done < end:
            lane = loop.next_lane()
            yield self._job.training.lanes.ids(self._job.step, lane).tolist()

    @property
    def loop(self) -> Loop:
        """The wrapped loop."""
        loop = Loop.of(self._job)
        if loop is None:
            raise JobError("the sampler was asked for a lane before mm.torch.wrap; wrap model and optimizer first")
        return loop

    def __len__(self) -> int:
        """Lanes of the epoch for this worker if no worker dies: as many as steps where each worker has one lane.

        Before the first epoch it is that of epoch 0: schedulers are made from it. Another epoch may have a step less.
        """
        begin, end = self.bounds(default=0)
        return (end - begin) * -(-self._job.lanes // self._job.training.workers)

    def state_dict(self) -> dict[str, Any]:
        """Where the job stands, for a checkpoint of your own."""
        loop = Loop.of(self._job)
        return {"epoch": self.epoch, "step": self._job.step if loop is None else loop.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin there; every worker must do the same."""
        if self._job.training.framework is not None:
            raise JobError("the sampler's state was loaded after the job began; load it before mm.torch.wrap")
        self._epoch, self._job.training.step = state["epoch"], int(state["step"])

    def bounds(self, default: int | None = None) -> tuple[int, int]:
        """The first step of the epoch, and that of the next."""
        epoch = default if self.epoch is None else self.epoch
        if epoch is None:
            raise JobError(
                "the sampler does not know its epoch; loop with `for epoch in job.epochs(n)`, or call "
                "set_epoch(epoch) before each one, so that a worker that joins late knows where the loop stands"
            )
        lanes = self._job.training.lanes
        return lanes.first_step(epoch), lanes.first_step(epoch + 1)


class Loader(Sampler):
    """The job's data for a wrapped loop, read ahead by other processes: replaces both sampler and `DataLoader`.

    They read the lanes that this worker will most likely compute. A lane that turns out not to be needed is dropped,
    and one that was not read, such as a dead worker's, is read here. Either way a sample drawn with random numbers is
    the same, because they depend on seed, step and lane. `options` are those of `DataLoader`. Data of `mm.data` is read
    by its own threads instead (`read_ahead`), and comes as tensors.
    """

    def __init__(self, job: LoopJob, num_workers: int = 2, **options: Any) -> None:
        super().__init__(job)
        self._options = {"num_workers": num_workers, **options}

    def __iter__(self) -> Iterator[Any]:
        return self._threads() if isinstance(self._job.training.data, Data) else self._processes()

    def _threads(self) -> Iterator[Any]:
        for _ in super().__iter__():
            assert self.loop.lane is not None, "it was begun just now"
            yield tensors(self._job.training.input.lane(self._job.step, self.loop.lane))

    def _processes(self) -> Iterator[Any]:
        drawn, emitted = _Seeded(self._job), deque[tuple[int, int]]()
        ahead = torch.utils.data.DataLoader(
            drawn, batch_size=None, sampler=_Forecast(self._job, self, emitted), collate_fn=_as_it_is, **self._options
        )
        pipe = iter(ahead)
        for _ in super().__iter__():
            lane = self.loop.lane
            assert lane is not None, "it was begun just now"
            wanted = self._job.step, lane
            with self._job.training.input.waiting():
                while emitted and emitted[0] < wanted:
                    emitted.popleft()
                    next(pipe)
                if emitted and emitted[0] == wanted:
                    emitted.popleft()
                    found = next(pipe)
                else:
                    kept = rng.states()
                    found = drawn[wanted]
                    rng.restore(kept)
            yield found


def tensors(tree: Any) -> Any:
    """Arrays as tensors of the same memory, for `.map_lane(mm.torch.tensors)`: any tree of them."""
    leaves = [value for _, value in plain_leaves(tree)]
    writable = [value if value.flags.writeable else value.copy() for value in leaves]
    return plain_rebuilt(tree, [torch.from_numpy(value) for value in writable])


class _Forecast:
    """Return the lanes that this worker will most likely compute in this epoch."""

    def __init__(self, job: LoopJob, loader: Loader, emitted: deque[tuple[int, int]]) -> None:
        self._job, self._loader, self._emitted = job, loader, emitted

    def __iter__(self) -> Iterator[tuple[int, int]]:
        coming = forecast(self._loader.loop.done - 1, -1, lambda: self._job.training.mine)
        for where in takewhile(lambda where: where[0] < self._loader.bounds()[1], coming):
            self._emitted.append(where)
            yield where


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
