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

Where the optimizer works element by element, the job can make the update, with each worker updating a part:

        weights = job.share(weights, optimizer=mm.optimizer(init, update))
        for step in job.steps(1000):
            weights, loss = job.update(lambda lane: grad_fn(weights, lane))
            job.commit(loss=loss / job.batch)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from meshmend.base.env import Settings
from meshmend.base.signatures import takes
from meshmend.errors import JobError
from meshmend.job.beginning import begin
from meshmend.job.config import JobConfig
from meshmend.job.data.source import size_of
from meshmend.job.evaluation import Chunks, Evaluation
from meshmend.job.frameworks.base import Framework
from meshmend.job.frameworks.choose import framework_of, sharded_among, sharded_framework_of, source_of
from meshmend.job.frameworks.draws import Draws, say_if_different
from meshmend.job.reduction.footer import Word
from meshmend.job.state.values import from_bytes, to_bytes
from meshmend.job.training import Training

if TYPE_CHECKING:
    from meshmend.job.embeddings.tables import EmbeddingTables
    from meshmend.job.slices.replica import Sharded


# More than 20 methods, because it is the whole public face: a method per word of a user's script, each of which only
# checks what it is given and passes it on.
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

    `check` has one lane of the first step computed twice, and says where the results differ: see `sum`.
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
        check: bool = True,
    ) -> None:
        config = JobConfig.checked(
            data, batch=batch, lanes=lanes, seed=seed, reduction=reduction, wire=wire, nonfinite=nonfinite
        )
        self._settings = Settings.here()
        self._check = check
        self.training = Training(config, source_of(data), self._settings)
        """For front ends that keep the user's own loop: see `meshmend.job.training`."""

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, trace
        self.training.leave(error)

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

    def share(
        self,
        *state: Any,
        warm: Callable[..., Any] | None = None,
        optimizer: Any = None,
        buddies: int | None = None,
        slices: str | None = None,
        tables: EmbeddingTables | None = None,
    ) -> Any:
        """Begin with this state; all workers get the same one, and newcomers that of a survivor.

        It is one tree of arrays, or any number of PyTorch objects (a model, its optimizer, a scheduler: everything with
        a `state_dict`), which are changed in place and returned. `warm(state, lane)` is called once before this worker
        counts as ready, and its result is dropped: give the function that computes a lane, so that spares and newcomers
        have compiled it when they are needed. One with three arguments gets `draws` too, as in `sum`.

        With an `optimizer` (`mm.optimizer`), the state is the weights, and steps are made with `update`: each worker
        holds a part of what the optimizer remembers, and makes that part of the update. `buddies` more workers (default
        1) hold a copy of each part; as long as one holder of each part lives, nothing is lost. Parts may begin and end
        within a tensor; with `slices="tensors"` they do not, for optimizers that look at whole tensors (Muon).

        With `tables` (`mm.EmbeddingTables`), each worker holds a part of their rows besides, and a lane's function
        returns a pair: what is to be summed, and `tables.gradient(ids, values)`. `commit` updates the rows.
        """
        framework: Framework
        if tables is not None and (optimizer is not None or sharded_among(state) is not None):
            raise JobError(
                "job.share got an optimizer and tables; give tables= without optimizer=, and update the state in your "
                "loop"
            )
        if (torch := sharded_among((*state, optimizer))) is not None:
            if buddies is not None or slices is not None:
                raise JobError("job.share got buddies= or slices=; give them to mm.torch.ShardedOptimizer")
            framework = sharded_framework_of(state if optimizer is None else (*state, optimizer), torch)
            sharded = _sharded(torch, torch.slices, torch.buddies, of_torch=True)
            begin(self.training, framework, warm, sharded)
        elif optimizer is None:
            given = {"buddies": buddies, "slices": slices}
            for name, value in given.items():
                if value is not None:
                    raise JobError(f"job.share got {name}={value!r} without an optimizer; give it optimizer= too")
            framework = framework_of(state)
            begin(self.training, framework, warm, tables=tables)
        else:
            framework = sharded_framework_of(state, None)
            sharded = _sharded(optimizer, slices, buddies)
            begin(self.training, framework, warm, sharded)
        return framework.shared

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs up to `count`, from the one in which the job stands: a newcomer or a resumed run repeats none.

        A run that is stopped after the last step of an epoch, and before the loop has left it, is resumed there: what
        follows that step (an evaluation) is done.

        Within an epoch, `job.steps()` gives its steps; the sampler of a wrapped PyTorch loop knows its epoch.
        """
        training = self.training
        training.calls.check_shared("epochs")
        training.progress.until = training.lanes.first_step(count)
        stands = training.lanes.epoch_to_begin(training.step, training.epochs_done)
        start = training.epochs_done = count if training.passing else stands
        for epoch in range(start, count):
            training.epoch = epoch
            yield epoch
            training.epochs_done = epoch + 1
        training.epoch = None

    def steps(self, count: int | None = None) -> Iterator[int]:
        """The steps up to `count`, from where the job stands; without a count, those of the epoch (`job.epochs`)."""
        training = self.training
        if count is None:
            if training.epoch is None:
                raise JobError("job.steps() without a count works only inside `for epoch in job.epochs(n)`")
            count = training.lanes.first_step(training.epoch + 1)
        else:
            training.progress.until = count
        if training.step >= count and not training.passing:
            training.say_repeat(f"the steps up to {count} were done")
        while training.step < count and not training.passing:
            yield training.step
            training.calls.check_next(training.step)

    def steps_in(self, epochs: int) -> int:
        """How many steps so many epochs take, for schedules: an epoch holds the steps that begin in it."""
        return self.training.lanes.first_step(epochs)

    def lane(self, lane: int) -> Any:
        """The samples of one lane of this step."""
        return self.training.lane(lane)

    def sum(self, function: Callable[..., Any]) -> Any:
        """The sum of `function(lane)` over all lanes of this step; any tree of arrays, the same for every lane.

        A step may have several sums, each with its own tree and the same lanes: the two updates of a GAN, a metric of
        the new weights. All workers make the same ones, in the same order.

        Any worker may compute a lane, and again when one dies, so its result must depend on the lane and the state
        alone. Where it draws random numbers, it takes a second argument, `function(lane, draws)`, with `draws.rng`
        (numpy), `draws.key` (JAX), `draws.generator` (PyTorch), `draws.lane`, `draws.step` and `draws.sum`.

        With PyTorch objects the function calls `backward`, and `.grad` is filled with the sums over all lanes; what
        it returns (a loss, or nothing) is summed too.
        """
        return self._summed(function, Word.SUM)

    def update(self, function: Callable[..., Any]) -> Any:
        """The weights after this step: the shared optimizer's update with the sum of `function(lane)` over all lanes.

        The function returns gradients of the shape of the weights, or a pair of them and more to be summed, such as a
        loss; then this returns a pair too, the weights and the sum of the rest. Otherwise like `sum`; `commit` follows
        it, without a state. Arrays of numpy cannot be written to, and change with the next update: copy those that you
        want to keep.
        """
        return self._summed(function, Word.UPDATE)

    def _summed(self, function: Callable[..., Any], word: Word) -> Any:
        training, trees = self.training, None
        lanes, compute = training.round(word), partial(_computed, function, takes(function, 2), training)
        while True:
            try:
                lane = lanes.send(trees)
            except StopIteration as end:
                assert training.framework is not None, "without one there is no sum"
                return training.framework.take(end.value, self.lanes)
            assert training.framework is not None, "without one no lane is asked for"
            trees = [training.framework.lane(partial(compute, lane), training.key(lane))]
            if self._check and lane == training.step == 0:
                self._check = False
                again = training.framework.lane(partial(compute, lane), training.key(lane))
                say_if_different(training.framework, trees[0], again)

    def commit(self, *state: Any, **metrics: Any) -> None:
        """The step is done, and this is the state after it; metrics (numbers) are printed and kept in the ledger.

        PyTorch objects are known already, and need not be given again.
        """
        self.training.calls.check_process("commit")
        self.training.calls.check_shared("commit")
        assert self.training.framework is not None, "it was shared"
        begun = self.training.framework.number_begun
        self.training.commit(state, {name: begun(value) or _number(name, value) for name, value in metrics.items()})

    def evaluate(self, data: Any, function: Callable[..., Any], *, rows: bool = False) -> Any:
        """The sum of `function(chunk)` over all of another data set, each chunk computed by one of the workers.

        Every worker calls it at the same point, between two steps, and gets the same sum: any tree of numbers (a count
        of right answers, a loss). Chunks have the size of a lane, the last one may be smaller. A function that takes a
        second argument, `function(chunk, weight)`, gets only chunks of full size: the last one is filled up, and
        `weight`, a float32 per sample, is 0 for what was added, otherwise 1. When a worker dies, the others compute
        its chunks. The state stays as it is: what the function changes in a PyTorch model's buffers is undone.

        With `rows=True` the function returns one row per sample (a score), and `evaluate` the rows of all samples in
        the order of the data, for metrics that are not sums (AUC). A worker's share may take up to 1 MiB, compressed.
        """
        training = self.training
        chunks = Chunks(training.input.opened(source_of(data)), size_of(data), training.lanes.lane_size)
        done, weighted = Evaluation(chunks), takes(function, 2)

        def compute(number: int) -> Any:
            training.session.tick()  # a sign of progress: the others wait for this work, which is outside a sum
            found = chunks.computed(number, function, weighted=weighted)
            assert training.framework is not None, "workers have met for this, which needs one"
            training.framework.drop()  # batch-norm statistics in training mode: no two workers have the same
            return found

        done.run(self.rank, compute, partial(training.exchange, Word.EVALUATE))
        result = done.all_rows() if rows else done.total()
        training.evaluated(done, result)
        return result

    def gather(self, value: Any) -> list[Any]:
        """The values of all workers, in the order of their ranks: numbers, text, lists, dicts, small arrays.

        Every worker calls it at the same point, between two steps. It survives deaths like a sum: who dies before it is
        done is missing in the list, on every worker. A newcomer is in no list that was made before it joined.
        """
        return self._gathered(Word.GATHER, value)

    def _gathered(self, word: Word, value: Any) -> list[Any]:
        found = self.training.exchange(word, to_bytes(value))
        return [from_bytes(found[rank]) for rank in sorted(found)]

    def broadcast(self, value: Any) -> Any:
        """The value of the first worker, on every worker; otherwise like `gather`."""
        return self._gathered(Word.BROADCAST, value)[0]

    def barrier(self) -> None:
        """Wait until every worker has come here; otherwise like `gather`."""
        self.training.exchange(Word.BARRIER, b"")

    def save(self, name: str, **metrics: Any) -> None:
        """Keep the state of the last commit as a checkpoint of this name ("best"), until it is saved again.

        Every worker calls it at the same point; the first one writes, and the others wait for it. It lies in the run's
        `checkpoints`, with plain `python` in the working directory's; `mm.load_checkpoint(run, name)` reads it. Metrics
        (numbers) are kept with it: see `saved`.
        """
        self.training.save(name, {key: _number(key, value, "save") for key, value in metrics.items()})

    def saved(self, name: str) -> dict[str, float]:
        """The metrics that the checkpoint of this name was saved with; none before that.

        Newcomers and resumed runs find them too, so a loop that keeps the best state need not remember its loss.
        """
        self.training.calls.check_shared("saved")
        return self.training.saver.saved(name)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """While this lasts, a worker that does something slow between two steps does not count as hung."""
        self.training.calls.check_process("pause")
        with self.training.session.pause():
            yield


def _computed(function: Callable[..., Any], draws: bool, training: Training, lane: int) -> Any:
    samples = training.lane(lane)
    return function(samples, Draws(*training.key(lane))) if draws else function(samples)


def _sharded(optimizer: Any, slices: str | None, buddies: int | None, *, of_torch: bool = False) -> Sharded:
    from meshmend.job.slices import optimizers, replica  # other jobs do without

    found = optimizers.checked(optimizers.of_torch(optimizer) if of_torch else optimizer, slices)
    return replica.Sharded(found, buddies, tensors=slices is not None)


def _number(name: str, value: Any, word: str = "commit") -> float:
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        shape = getattr(value, "shape", None)
        what = f"a {type(value).__name__}" + (f" of shape {tuple(shape)}" if shape is not None else "")
        raise JobError(f"metric {name!r} is {what}; give a single number to job.{word}") from None
