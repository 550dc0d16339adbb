"""An existing PyTorch loop as a job: the loop goes round once a lane, and hardly changes.

    model, optimizer = mm.torch.wrap(model, optimizer, job)
    sampler = mm.torch.Sampler(job)
    loader = DataLoader(dataset, batch_sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:               a lane of this worker, or one of a dead worker's
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()              the lane is done; with the last one: sum, average, update

A loop cannot be called again for the lanes of the dead, but it can be given them: they are just more batches. With as
many lanes as workers it goes round once a step, as under DDP. What follows `step` (a scheduler) still belongs to the
step: it is committed when the loop asks for the next lane, or ends.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from meshmend.errors import JobError
from meshmend.job.frameworks.base import Held
from meshmend.job.job import Job


class Loop:
    """Where a wrapped loop stands."""

    def __init__(self, job: Job, optimizer: Any, after_sum: Callable[[], Any] | None) -> None:
        state = job._state
        assert isinstance(state, Held), "it was shared just now"
        self._job, self._state, self._after_sum = job, state, after_sum
        self._asked: Generator[int, Any, Any] | None = None
        self._lane: int | None = None
        self._given = False
        self._metrics: dict[str, Any] | None = None
        self.updates = 0
        self._optimizer, self._update = optimizer, optimizer.step
        # A bound method: schedulers bind what they find here, and a function would get the optimizer as an argument.
        optimizer.step = self.step
        job._last = self.finish

    @property
    def done(self) -> int:
        """Steps whose update is made."""
        return self._job.step + (self._metrics is not None)

    @property
    def within(self) -> bool:
        """A step has begun, and its sum is not there yet."""
        return self._asked is not None

    @property
    def lane(self) -> int | None:
        """The lane that is being computed."""
        return self._lane

    def next_lane(self) -> int:
        """The lane to compute now; before the first one of a step, the step before is committed."""
        if self._given:
            raise JobError(
                "the next lane was asked for before optimizer.step() ended the last one: call it once for every batch, "
                "without gradient accumulation (lanes do that), and to read ahead take mm.torch.Loader"
            )
        if self._asked is None:
            self._commit()
            self._asked = self._job._asked()
            self._lane = self._asked.send(None)
        assert self._lane is not None
        self._given = True
        self._state.begin(self._job._key(self._lane))
        return self._lane

    def step(self, closure: None = None, **metrics: Any) -> None:
        """In place of the optimizer's: the lane is done. Metrics are averaged over lanes, printed and kept."""
        if closure is not None:
            raise JobError("optimizer.step was given a closure: a wrapped loop takes optimizers that need none")
        if not self._given or self._asked is None:
            raise JobError("optimizer.step() was called without a lane: take the batches from mm.torch.Sampler")
        tree = self._state.end(metrics)
        self._given = False
        try:
            self._lane = self._asked.send(tree)
        except StopIteration as end:
            self._asked = self._lane = None
            self._metrics = self._state.take(end.value, self._job.lanes, mean=True)
            if self._after_sum is not None:
                self._after_sum()
            self._update()
            self.updates += 1
            self._optimizer._opt_called = True  # schedulers warn where they see no call

    def finish(self) -> None:
        """The job ends."""
        if self.within:
            raise JobError(
                f"the loop ended within step {self._job.step}: leave it between two steps, such as by job.step"
            )
        self._commit()

    def _commit(self) -> None:
        if self._metrics is not None:
            metrics, self._metrics = self._metrics, None
            self._job.commit(**metrics)


setattr(Loop.step, "_wrapped_by_lr_sched", True)  # noqa: B010 (schedulers warn where another `step` has no such mark)


def wrap(model: Any, optimizer: Any, job: Job, *more: Any, after_sum: Callable[[], Any] | None = None) -> Any:
    """Share these objects and let `optimizer.step` end a lane, and with a step's last lane the step.

    `.grad` is then the average over lanes, as under DDP. `after_sum` is called when it is there and before the update:
    the place for clipping. `more` is what else belongs to the state. Returns model, optimizer and `more`: the same
    objects, but for schedulers, whose `step` is then heeded once an update.
    """
    job.share(model, optimizer, *more)
    job._loop = loop = Loop(job, optimizer, after_sum)
    return model, optimizer, *(Scheduler(loop, one) if hasattr(one, "step") else one for one in more)


class Scheduler:
    """A scheduler whose `step` is heeded once an update, however many lanes the loop went through for it."""

    def __init__(self, loop: Loop, inner: Any) -> None:
        self._loop, self._inner, self._seen = loop, inner, 0

    def step(self, *args: Any, **options: Any) -> Any:
        """The scheduler's own, where something was updated since the last call."""
        if self._seen == self._loop.updates:
            return None
        self._seen = self._loop.updates
        return self._inner.step(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Sampler:
    """The lanes that a wrapped loop is to compute, for `DataLoader(batch_sampler=…)`.

    An epoch holds the steps that begin in it. One who joins late, or resumes, finds the epochs before it empty.
    """

    def __init__(self, job: Job) -> None:
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
                f"epoch {self._epoch} begins with step {begin}, but the job is at step {loop.done}: go through all "
                "epochs from 0 on, those that are done are empty"
            )
        while loop.within or loop.done < end:
            lane = loop.next_lane()
            yield self._job._lanes.ids(self._job.step, lane).tolist()

    @property
    def loop(self) -> Loop:
        """The loop that it is for."""
        if not isinstance(self._job._loop, Loop):
            raise JobError("the sampler was asked for a lane before mm.torch.wrap: wrap model and optimizer first")
        return self._job._loop

    def __len__(self) -> int:
        """Lanes of the epoch for this worker, if nobody dies: as many as steps where each worker has one lane."""
        begin, end = self.bounds()
        return (end - begin) * -(-self._job.lanes // self._job._link.wanted)

    def state_dict(self) -> dict[str, Any]:
        """Where the job stands, for a checkpoint of your own."""
        loop = self._job._loop
        return {"epoch": self._epoch, "step": loop.done if isinstance(loop, Loop) else self._job.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin there, on every worker alike."""
        if self._job._state is not None:
            raise JobError("the sampler's state was loaded after the job began: load it before mm.torch.wrap")
        self._epoch, self._job._step = state["epoch"], int(state["step"])

    def bounds(self) -> tuple[int, int]:
        """The first step of the epoch, and that of the next."""
        if self._epoch is None:
            raise JobError(
                "the sampler does not know its epoch: call set_epoch(epoch) before each, so that a worker that joins "
                "late knows where the loop stands"
            )
        lanes = self._job._lanes
        begin, end = (-(-epoch * lanes.size // lanes.batch) for epoch in (self._epoch, self._epoch + 1))
        return begin, end
