"""The user's side of training: five words around an ordinary loop.

    with mm.Job(data, batch=512, lanes=32) as job:
        state = job.share(init())
        for step in job.steps(1000):
            grads, loss = job.sum(lambda lane: grad_fn(state, lane))
            state = update(state, grads)
            job.commit(state, loss=loss / job.batch)

Under `meshmend run` the sums are over all workers, and the loop never sees a failure: `job.sum` calls the function
again for the lanes of the dead. With plain `python` it is a world of one, and the same script just runs.

PyTorch's objects change in place, so they are shared once, and `job.sum` fills `.grad` (`frameworks/torch/`):

        job.share(model, optimizer)
        for step in job.steps(1000):
            loss = job.sum(lambda lane: backward(model, lane))
            optimizer.step()
            job.commit(loss=loss / job.batch)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any

from meshmend.base.env import Settings
from meshmend.errors import JobError
from meshmend.job.config import JobConfig
from meshmend.job.data.source import size_of
from meshmend.job.frameworks.choose import framework_of, source_of
from meshmend.job.training import Training


class Job:
    """A training job over random-access data (`len(data)`, `data[ids]`; tuples and dicts of arrays are columns).

    Each step takes `batch` samples, divided into `lanes` lanes: a lane is a microbatch, the unit of work that moves to
    another worker when one dies.

    `reduction="exact"` makes sums, and so the weights, bit for bit the same with any number of workers and under any
    failures; "float" is float32. `nonfinite` says what to do where a sum is NaN or Inf: "error" (the default in exact
    mode), "skip" (leave this batch out and take the next), or "pass" (the default in float mode, and possible only
    there).

    `wire="bf16"`, possible with "float" only, halves the bytes that workers exchange: each worker's sum over its lanes
    is computed in float32 and then rounded to bf16 (a relative error of at most 1/256), and so is the sum over all
    workers. Leaves of fewer than 64 numbers, such as a loss, and leaves of integers travel as float32. A world of one
    rounds its sums once too, so that it trains with the same precision; but as always with "float", the last bits
    depend on who computed which lane.
    """

    def __init__(
        self,
        data: Any,
        batch: int,
        lanes: int,
        *,
        seed: int = 0,
        reduction: str = "float",
        wire: str = "float32",
        nonfinite: str | None = None,
    ) -> None:
        config = JobConfig.checked(
            size_of(data), batch=batch, lanes=lanes, seed=seed, reduction=reduction, wire=wire, nonfinite=nonfinite
        )
        self._settings = Settings.here()
        self.training = Training(config, source_of(data), self._settings)
        """For front ends that keep the user's own loop: see `meshmend.job.training`."""

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.training.leave(well=kind is None)

    @property
    def batch(self) -> int:
        """Samples per step, over all workers: divide sums by this to get means."""
        return self.training.lanes.batch

    @property
    def lanes(self) -> int:
        """Lanes per step, over all workers: where a lane gives a mean, divide by this to get the mean of the batch."""
        return self.training.lanes.lanes

    @property
    def step(self) -> int:
        """The current step: how many are committed or skipped."""
        return self.training.step

    @property
    def rank(self) -> int:
        """The number of this worker in its run, from 0; 0 alone. A replacement has the rank of the dead worker."""
        return 0 if self._settings is None else self._settings.rank

    @property
    def first(self) -> bool:
        """Whether this worker speaks for all: it has the lowest rank of those that took part in the last sum.

        True alone; under `meshmend run` False on every worker before the first sum. Ask again each time: the first
        worker may die.
        """
        return self.training.session.first

    def share(self, *state: Any, warm: Callable[[Any, Any], Any] | None = None) -> Any:
        """Begin with this state; all workers get the same one, and newcomers that of a survivor.

        It is one tree of arrays, or any number of PyTorch objects (a model, its optimizer, a scheduler: everything with
        a `state_dict`), which are changed in place and returned. `warm(state, lane)` is called once before this worker
        counts as ready, and its result is dropped: give the function that computes a lane, so that spares and newcomers
        have compiled it when they are needed.
        """
        framework = framework_of(state)
        self.training.begin(framework, warm)
        return framework.shared

    def steps(self, count: int) -> Iterator[int]:
        """The steps up to `count`, from where the job stands."""
        self.training.expect(count)
        while self.step < count:
            yield self.step

    def lane(self, lane: int) -> Any:
        """The samples of one lane of this step."""
        return self.training.lane(lane)

    def sum(self, function: Callable[[Any], Any]) -> Any:
        """The sum of `function(lane)` over all lanes of this step; any tree of arrays, the same for every lane.

        With PyTorch objects the function calls `backward`, and `.grad` is filled with the sums over all lanes; what
        it returns (a loss, or nothing) is summed too.
        """
        training, tree = self.training, None
        lanes = training.round()
        while True:
            try:
                lane = lanes.send(tree)
            except StopIteration as end:
                assert training.framework is not None, "without one there is no sum"
                return training.framework.take(end.value, self.lanes)
            assert training.framework is not None, "without one no lane is asked for"
            tree = training.framework.lane(partial(_computed, function, training, lane), training.key(lane))

    def commit(self, *state: Any, **metrics: Any) -> None:
        """The step is done, and this is the state after it; metrics (numbers) are printed and kept in the ledger.

        PyTorch objects are known already, and need not be given again.
        """
        self.training.check_process("commit")
        self.training.commit(state, {name: _number(name, value) for name, value in metrics.items()})

    @contextmanager
    def pause(self) -> Iterator[None]:
        """While this lasts, a worker that does something slow between two steps does not count as hung."""
        self.training.check_process("pause")
        with self.training.session.pause():
            yield


def _computed(function: Callable[[Any], Any], training: Training, lane: int) -> Any:
    return function(training.lane(lane))


def _number(name: str, value: Any) -> float:
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        shape = getattr(value, "shape", None)
        what = f"a {type(value).__name__}" + (f" of shape {tuple(shape)}" if shape is not None else "")
        raise JobError(f"metric {name!r} is {what}; give a single number to job.commit") from None
