"""An existing PyTorch loop as a job: it runs once per lane, and hardly changes.

    model, optimizer = mm.torch.wrap(model, optimizer, job)
    loader = DataLoader(dataset, batch_sampler=mm.torch.Sampler(job))
    for epoch in job.epochs(3):
        for x, y in loader:               a lane of this worker, or one of a dead worker's
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()              the lane is done; with the last one: sum, average, update

A loop cannot be called again for the lanes of a dead worker, but it can be given them: they are just more batches. With
as many lanes as workers it runs once per step, as under DDP. What follows `step` (a scheduler) still belongs to the
step, which is committed when the loop asks for the next lane, or ends.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from meshmend.errors import JobError
from meshmend.job.frameworks.base import LoopJob
from meshmend.job.frameworks.torch.per_update import per_update, scaler_among
from meshmend.job.frameworks.torch.weights import TorchWeights


class Loop:
    """Where a wrapped loop stands."""

    def __init__(
        self,
        job: LoopJob,
        optimizer: Any,
        scaler: Any,
        after_sum: Callable[[], Any] | None,
        after_update: Callable[[], Any] | None,
    ) -> None:
        framework = job.training.framework
        assert framework is not None, "it was shared just now"
        self._job, self._framework = job, framework
        self._scaler, self._after_sum, self._after_update = scaler, after_sum, after_update
        self._round: Generator[int, Any, Any] | None = None
        self._lane: int | None = None
        self._given = False
        self._metrics: dict[str, Any] | None = None
        self._rates: list[dict[str, Any]] | None = None
        """The numbers in the optimizer's groups as the first lane of the step left them."""
        self.updates = 0
        """How many updates this worker has made."""
        self.updating = False
        """Whether the sum is there, and its update is being made."""
        if isinstance(framework, TorchWeights):
            if scaler is not None or after_sum is not None:
                what = "a GradScaler" if scaler is not None else "after_sum"
                raise JobError(
                    f"mm.torch.wrap got {what} with a ShardedOptimizer, but no worker has all of its gradients; to "
                    "clip, give ShardedOptimizer clip=, and use bfloat16 instead of a scaler"
                )
            framework.average(job.lanes)
        self._optimizer, self._update = optimizer, optimizer.step
        # A bound method: schedulers bind what they find here, and a function would get the optimizer as an argument.
        optimizer.step = self.step
        job.training.on_leave = self.finish
        job.training.on_exchange = self.settle

    @classmethod
    def of(cls, job: LoopJob) -> Loop | None:
        """The loop that was wrapped for a job."""
        return job.training.loop if isinstance(job.training.loop, Loop) else None

    @property
    def done(self) -> int:
        """Steps whose update has been made."""
        return self._job.step + (self._metrics is not None)

    @property
    def within(self) -> bool:
        """Whether a step has begun whose sum has not arrived yet."""
        return self._round is not None

    @property
    def lane(self) -> int | None:
        """The lane that is being computed."""
        return self._lane

    def next_lane(self) -> int:
        """The lane to compute now; before the first one of a step, the previous step is committed."""
        if self._given:
            raise JobError(
                "the loop asked for the next batch before it called optimizer.step() for the last one; call it once "
                "per batch, without gradient accumulation (lanes do that), give the DataLoader "
                "batch_sampler=mm.torch.Sampler(job) and not sampler=, and in place of num_workers= use "
                "mm.torch.Loader to read ahead"
            )
        if self._round is None:
            self._commit()
            self._round = self._job.training.round()
            self._lane = self._round.send(None)
        assert self._lane is not None
        self._given = True
        self._framework.begin(self._job.training.key(self._lane))
        return self._lane

    def step(self, closure: None = None, **metrics: Any) -> Any:
        """Replaces the optimizer's: the lane is done. Metrics are averaged over lanes, printed and kept."""
        if self.updating:
            return self._update()  # a gradient scaler found no Inf, and has the optimizer update
        if closure is not None:
            raise JobError("optimizer.step got a closure; a wrapped loop needs an optimizer that takes none")
        if not self._given or self._round is None:
            raise JobError("optimizer.step() was called without a lane; take the batches from mm.torch.Sampler")
        self._check_rates()
        tree = self._framework.end(metrics)
        self._given = False
        try:
            self._lane = self._round.send([tree])
        except StopIteration as end:
            self._round = self._lane = self._rates = None
            self._metrics = self._framework.take(end.value, self._job.lanes, mean=True)
            self.updating = True
            self._make_update()
            self.updating = False
            self.updates += 1
        return None

    def _check_rates(self) -> None:
        """Refuse a schedule that advances with every lane, and so further on a worker with more of them."""
        rates = [
            {name: value for name, value in group.items() if isinstance(value, int | float)}
            for group in self._optimizer.param_groups
        ]
        if self._rates is None:
            self._rates = rates
        for before, now in zip(self._rates, rates, strict=False):
            for name in now:
                if now[name] != before.get(name, now[name]):
                    what = "the learning rate" if name == "lr" else f"{name!r} of the optimizer"
                    raise JobError(
                        f"{what} changed between two lanes of step {self._job.step}: give the scheduler to "
                        "mm.torch.wrap(model, optimizer, job, scheduler), and use the one that it returns, so that it "
                        "advances once per update"
                    )

    def _make_update(self) -> None:
        """`.grad` holds the mean over lanes."""
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        if self._after_sum is not None:
            self._after_sum()
        if self._scaler is not None:
            self._scaler.step(self._optimizer)
        else:
            self._update()
        self._optimizer._opt_called = True  # schedulers warn where they see no call
        if self._after_update is not None:
            self._after_update()

    def finish(self) -> None:
        """The job ends: commit the last step."""
        if self.within:
            raise JobError(
                f"the loop ended in the middle of step {self._job.step}; leave it between two steps, as soon as "
                "job.step has advanced"
            )
        self._commit()

    def settle(self) -> None:
        """Something else comes before the next lane: the step that was updated is committed now."""
        if not self.within:
            self._commit()

    def _commit(self) -> None:
        if self._metrics is not None:
            metrics, self._metrics = self._metrics, None
            self._job.commit(**metrics)


setattr(Loop.step, "_wrapped_by_lr_sched", True)  # noqa: B010 (schedulers warn where another `step` has no such mark)


def wrap(
    model: Any,
    optimizer: Any,
    job: LoopJob,
    *more: Any,
    after_sum: Callable[[], Any] | None = None,
    after_update: Callable[[], Any] | None = None,
) -> Any:
    """Share these objects and let `optimizer.step` end a lane and, with a step's last lane, the step.

    `.grad` is then the mean over lanes, as under DDP. `after_sum` is called before each update, once `.grad` holds the
    mean: the place for clipping. `after_update` is called after it: the place for an average of the weights by a class
    of your own.

    `more` is what else belongs to the state. Returns model, optimizer and `more`: the same objects, except that the
    `step` of a scheduler, the `update_parameters` of an `AveragedModel` and the `step` and `update` of a `GradScaler`
    take effect once per update, though the loop calls them once per lane.
    """
    scaler = scaler_among(more, job.training.config.nonfinite)
    job.share(model, optimizer, *more)
    loop = job.training.loop = Loop(job, optimizer, scaler, after_sum, after_update)
    return model, optimizer, *(per_update(loop, one) for one in more)
