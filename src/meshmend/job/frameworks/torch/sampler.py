"""The lanes of a wrapped loop, in the place of PyTorch's sampler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshmend.errors import JobError
from meshmend.job.frameworks.base import LoopJob
from meshmend.job.frameworks.torch.loop import Loop


class Sampler:
    """The lanes that a wrapped loop is to compute, for `DataLoader(batch_sampler=…)`.

    An epoch holds the steps that begin in it. A worker that joins late, or resumes, finds the earlier epochs empty.
    """

    def __init__(self, job: LoopJob) -> None:
        self._job = job
        self._epoch: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next iteration is."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        loop = self.loop
        begin, end = self.bounds()
        if loop.done < begin:
            raise JobError(
                f"epoch {self._epoch} begins with step {begin}, but the job is at step {loop.done}; iterate over all "
                "epochs from 0 on, those that are done are empty"
            )
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
        """Lanes of the epoch for this worker if no worker dies: as many as steps where each worker has one lane."""
        begin, end = self.bounds()
        return (end - begin) * -(-self._job.lanes // self._job.training.workers)

    def state_dict(self) -> dict[str, Any]:
        """Where the job stands, for a checkpoint of your own."""
        loop = Loop.of(self._job)
        return {"epoch": self._epoch, "step": self._job.step if loop is None else loop.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin there; every worker must do the same."""
        if self._job.training.framework is not None:
            raise JobError("the sampler's state was loaded after the job began; load it before mm.torch.wrap")
        self._epoch, self._job.training.step = state["epoch"], int(state["step"])

    def bounds(self) -> tuple[int, int]:
        """The first step of the epoch, and that of the next."""
        if self._epoch is None:
            raise JobError(
                "the sampler does not know its epoch; call set_epoch(epoch) before each one, so that a worker that "
                "joins late knows where the loop stands"
            )
        lanes = self._job.training.lanes
        begin, end = (-(-epoch * lanes.size // lanes.batch) for epoch in (self._epoch, self._epoch + 1))
        return begin, end
