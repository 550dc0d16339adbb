"""The user's side of training: five words round an ordinary loop.

    with mm.Job(data, batch=512, lanes=32) as job:
        state = job.share(init())
        for step in job.steps(1000):
            grads, loss = job.sum(lambda lane: grad_fn(state, lane))
            state = update(state, grads)
            job.commit(state, loss=loss / job.batch)

Under `meshmend run` the sums are over all workers, and the loop never sees a failure: `job.sum` calls the function
again for the lanes of the dead. With plain `python` it is a world of one, and the same script just runs.

PyTorch's objects change in place, so they are shared once, and `job.sum` fills `.grad` (`train/torch/`):

        job.share(model, optimizer)
        for step in job.steps(1000):
            loss = job.sum(lambda lane: backward(model, lane))
            optimizer.step()
            job.commit(loss=loss / job.batch)
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np

from meshmend.base.env import Settings
from meshmend.errors import JobError
from meshmend.job.checkpoints import Checkpoints
from meshmend.job.data.lanes import Ids, Lanes
from meshmend.job.faults import Faults, Point
from meshmend.job.frameworks.base import Held, held, rows
from meshmend.job.ledger import StepLedger
from meshmend.job.reduction import bf16
from meshmend.job.reduction.sums import KINDS, Bf16Sums, ExactSums, FloatSums, NotFinite
from meshmend.job.reduction.wire import Layout
from meshmend.job.session import WorkerSession
from meshmend.job.shm import MOST_LANES
from meshmend.job.solo import Solo
from meshmend.job.state.codec import digest_of, flipped, from_pieces, pieces

WIRES = ("float32", "bf16")
NONFINITE = ("error", "skip", "pass")


class Job:
    """A training job over random-access data (`len(data)`, `data[ids]`; tuples and dicts of arrays are columns).

    `reduction="exact"` makes sums, and so the weights, bit for bit the same with any number of workers and under any
    failures; "float" is float32. `nonfinite` says what to do where a sum is NaN or Inf: "error" (the rule in exact
    mode), "skip" (leave this batch out and take the next), or "pass" (the rule in float mode, and possible only there).

    `wire="bf16"`, possible with "float" only, halves the bytes that workers exchange: each worker's sum over its lanes
    is made in float32 and then rounded to bf16 (off by 1 in 256 at most), and so is the sum over all workers. Leaves of
    fewer than 64 numbers, such as a loss, and leaves of whole numbers travel as float32. A world of one rounds its sums
    once too, so that it trains with the same precision; but as always with "float", the last bits depend on who
    computed which lane.
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
        if reduction not in KINDS:
            raise JobError(f"reduction={reduction!r}: choose from {', '.join(KINDS)}")
        if wire not in WIRES:
            raise JobError(f"wire={wire!r}: choose from {', '.join(WIRES)}")
        if wire == "bf16" and reduction != "float":
            raise JobError(
                f"wire={wire!r} with reduction={reduction!r}: exact sums need all their bits, choose one of the two"
            )
        self._nonfinite = nonfinite or ("error" if reduction == "exact" else "pass")
        if self._nonfinite not in NONFINITE or (reduction == "exact" and self._nonfinite == "pass"):
            raise JobError(f"nonfinite={nonfinite!r} with reduction={reduction!r}: choose 'error' or 'skip'")
        batch, lanes, seed = (_whole(n, value) for n, value in {"batch": batch, "lanes": lanes, "seed": seed}.items())
        if seed < 0:
            raise JobError(f"seed={seed}: give a whole number from 0 on")
        if lanes > MOST_LANES:
            raise JobError(f"{lanes} lanes were asked for: at most {MOST_LANES} are possible")
        columns = data.values() if isinstance(data, dict) else data if isinstance(data, tuple) else [data]
        sizes = {_samples_in(column) for column in columns}
        if len(sizes) != 1:
            raise JobError(f"the columns of the data have {sorted(sizes)} samples: they must have the same number")
        self._data = rows(data)
        self._lanes = Lanes(sizes.pop(), batch, lanes, seed)
        self._reduction = reduction
        self._wire = wire
        if wire == "bf16":
            bf16.load()
        self._sums: FloatSums | ExactSums | None = None
        self._state: Any = None
        self._shared = self._summed = False
        """Whether there is a state to begin with, and whether this step has its sum."""
        self._last: Callable[[], None] = lambda: None
        """What a wrapped loop has left to do when the job ends well."""
        self._loop: object = None
        self._process = os.getpid()
        self._step = 0
        self._grid: list[int] = []
        self._settings = settings = Settings.here()
        self._diary = StepLedger(settings)
        self._link: Solo | WorkerSession = Solo(lanes) if settings is None else WorkerSession(settings, lanes)
        self._saver = None if settings is None else Checkpoints(settings, self._diary)
        if isinstance(self._link, WorkerSession) and settings is not None and self._diary.log is not None:
            link = self._link
            link.faults = Faults(settings.rank, settings.folder, self._diary.log, lambda: link.epoch)
            self._link.save = self._save_now

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._process:
            return
        if kind is None:
            self._last()
            self._link.leave()
            self._diary.confirm()
        if self._saver is not None:
            self._saver.close()

    @property
    def batch(self) -> int:
        """Samples in a step, over all workers: divide sums by this for means."""
        return self._lanes.batch

    @property
    def lanes(self) -> int:
        """Lanes in a step, over all workers: where a lane gives a mean, divide by this for the mean over the batch."""
        return self._lanes.lanes

    @property
    def step(self) -> int:
        """The step that is being done: how many are committed or skipped."""
        return self._step

    @property
    def rank(self) -> int:
        """The number of this worker in its run, from 0; 0 alone. One that takes a dead worker's place has its rank."""
        return 0 if self._settings is None else self._settings.rank

    @property
    def first(self) -> bool:
        """Whether this worker speaks for all: it has the lowest rank of those that took part in the last sum.

        True alone; under `meshmend run` false everywhere before the first sum. Ask anew each time: the first may die.
        """
        return self._link.first

    def share(self, *state: Any, warm: Callable[[Any, Any], Any] | None = None) -> Any:
        """Begin with this state; all workers get the same one, and newcomers that of a survivor.

        It is one tree of arrays, or any number of PyTorch objects (a model, its optimizer, a scheduler: all that have
        `state_dict`), which are changed in place and given back. `warm(state, lane)` is called once before this worker
        counts as ready, and what it returns is dropped: give the function that computes a lane, so that spares and
        newcomers have it compiled when they are needed.
        """
        self._check_process("share")
        objects = held(state)
        if objects is None and len(state) != 1:
            raise JobError(f"{len(state)} states were shared: give one tree of arrays, and warm= by its name")
        begun = self._state = state[0] if objects is None else objects
        if self._saver is not None and self._settings is not None and self._settings.resume:
            self._state, self._step, self._grid = self._saver.load(self._settings.resume, begun, self._about())
        self._digest()
        if warm is not None and objects is not None:
            objects.lane(lambda: warm(objects.objects, self.lane(0)), self._key(0))
            objects.drop()
        elif warm is not None:
            warm(self._state, self.lane(0))
        self._link.strike(Point.SHARE)
        given = self._link.share(lambda: self._export(self._state))
        if given is not None:
            self._state = self._adopt(given, begun)
            self._digest()
        self._diary.opened(self._link.epoch, self._step, self._lanes, self._reduction)
        self._shared = True
        return self._state if objects is None else objects.objects

    def steps(self, count: int) -> Iterator[int]:
        """The steps up to `count`, from where the job stands."""
        while self._step < count:
            yield self._step

    def lane(self, lane: int) -> Any:
        """The samples of one lane of this step."""
        return samples(self._data, self._lanes.ids(self._step, lane))

    def sum(self, function: Callable[[Any], Any]) -> Any:
        """The sum of `function(lane)` over all lanes of this step; any tree of arrays, the same for every lane.

        With PyTorch objects the function calls `backward`, and `.grad` is filled with the sums over all lanes; what
        it returns (a loss, or nothing) is summed too.
        """
        state, asked, tree = self._state, self._asked(), None
        while True:
            try:
                lane = asked.send(tree)
            except StopIteration as end:
                return state.take(end.value, self.lanes) if isinstance(state, Held) else end.value
            if isinstance(state, Held):
                tree = state.lane(lambda lane=lane: function(self.lane(lane)), self._key(lane))  # type: ignore[misc]
            else:
                tree = function(self.lane(lane))

    def _asked(self) -> Generator[int, Any, Any]:
        """The lanes of this step that this worker is asked for; is sent their trees, and returns the sum."""
        self._check_process("sum")
        if not self._shared:
            raise JobError("job.sum was called before job.share: share the state that training begins with first")
        if self._summed:
            raise JobError(
                f"job.sum was called twice in step {self._step}: return all that is to be summed as one tree, and call "
                "job.commit before the next sum"
            )
        while True:
            total = yield from self._link.round(self._prepare)
            self._confirmed()
            assert self._sums is not None, "a total cannot come before the first part"
            wire = total[: self._sums.wire_size]
            try:
                if isinstance(self._sums, FloatSums) and self._nonfinite != "pass":
                    self._sums.check(wire, self._step)
                result = self._sums.finish(wire, self._step)
            except NotFinite as error:
                if self._nonfinite != "skip":
                    raise
                why = str(error).split(", so")[0]
                self._diary.skipped(self._link.epoch, self._step, self._link.account.by, why, self._link.first)
                self._step += 1
            else:
                if result is not None:
                    self._summed = True
                    return result
            self._digest()  # the grid or the step has changed, so this round has a state of its own

    def commit(self, *state: Any, **metrics: Any) -> None:
        """The step is done, and this is the state after it; metrics (numbers) are printed and kept in the ledger.

        PyTorch objects are known already, and need not be given again.
        """
        self._check_process("commit")
        values = {name: _number(name, value) for name, value in metrics.items()}
        if not self._shared:
            raise JobError("job.commit was called before job.share: share the state that training begins with first")
        if not self._summed:
            raise JobError(f"job.commit was called in step {self._step} without a sum: call job.sum once in every step")
        fault = self._link.strike(Point.COMMIT)
        if isinstance(self._state, Held):
            self._state.commit()
        elif len(state) != 1:
            raise JobError(f"{len(state)} states were committed: give the one tree of arrays after this step")
        else:
            self._state = state[0]
        if fault is not None and fault.kind == "flip":
            self._state = flipped(self._state)
        self._step += 1
        self._summed = False
        account, first = self._link.account, self._link.first
        digest = self._digest_now()
        # Before the state may be handed out, and with it the step that is not written down yet.
        self._diary.committed(self._link.epoch, self._step - 1, account.by, account.digests, digest, values, first)
        self._link.digested(self._step, digest)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """While this lasts, a worker that does something long between two steps does not count as standing still."""
        self._check_process("pause")
        with self._link.pause():
            yield

    def _check_process(self, word: str) -> None:
        if os.getpid() != self._process:
            raise JobError(
                f"job.{word} was called in a fork of the worker: the job belongs to the process that made it"
            )

    def _confirmed(self) -> None:
        """All workers have the same state after the last step: now it may be written down, and to disk."""
        self._diary.confirm()
        if self._saver is not None and self._link.first:
            self._saver.offer(self._state, self._step, self._about(), self._grid_now)

    def _key(self, lane: int) -> tuple[int, int, int]:
        """What a lane's random numbers depend on, whoever computes it."""
        return self._lanes.seed, self._step, lane

    def _digest(self) -> None:
        self._link.digested(self._step, self._digest_now())

    def _digest_now(self) -> int:
        return digest_of(self._state, np.array(self._grid_now(), np.int16))

    def _prepare(self, tree: Any) -> FloatSums | ExactSums:
        if self._sums is None:
            kind, layout = Bf16Sums if self._wire == "bf16" else KINDS[self._reduction], Layout(tree, self._lanes.lanes)
            if not layout.leaves:
                raise JobError(
                    "job.sum got nothing from its function: return gradients, or share a model and its optimizer"
                )
            self._sums = kind(layout, self._lanes.lanes)
            if isinstance(self._sums, ExactSums) and self._grid:
                self._sums.exact.restore(np.array(self._grid, np.int16))
        return self._sums

    def _grid_now(self) -> list[int]:
        return self._sums.exact.state().tolist() if isinstance(self._sums, ExactSums) else self._grid

    def _about(self) -> dict[str, Any]:
        """What must be the same for a checkpoint to go on from."""
        lanes = self._lanes
        return {"size": lanes.size, "batch": lanes.batch, "seed": lanes.seed, "reduction": self._reduction}

    def _export(self, state: Any) -> list[Any]:
        # Whoever gets this state also gets to write its step down, in case all that did the step die now.
        return pieces(state, step=self._step, grid=self._grid_now(), pending=self._diary.pending)

    def _adopt(self, data: Any, like: Any) -> Any:
        # How large the grid must be shows only with the first gradients: it is kept aside until then.
        state, about = from_pieces(data, like)
        self._step, self._grid = about["step"], about["grid"]
        self._diary.take_over(about["pending"])
        return state

    def _save_now(self) -> bool:
        self._diary.confirm()
        return self._saver is None or self._saver.now(self._state, self._step, self._about(), self._grid_now)


def samples(data: Any, ids: Ids) -> Any:
    """Some samples of the data, column by column where it has several."""
    if isinstance(data, dict):
        return {name: column[ids] for name, column in data.items()}
    if isinstance(data, tuple):
        return tuple(column[ids] for column in data)
    return data[ids]


def _whole(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise JobError(f"{name}={value!r}: give a whole number") from None


def _samples_in(column: Any) -> int:
    """How many samples a column of the data has."""
    kind = type(column).__name__
    if isinstance(column, (list, str, bytes, range, set)) or hasattr(column, "iloc"):
        raise JobError(
            f"the data is a {kind}, which cannot be asked for several samples at once (data[ids]): give numpy.asarray "
            "of it, or a tuple of arrays where samples have several parts"
        )
    try:
        size = len(column)
    except TypeError:
        size = -1
    if size < 0 or not hasattr(column, "__getitem__"):
        raise JobError(
            f"the data is a {kind}, but lanes are drawn by number: give something with len() and data[ids], such as an "
            "array"
        )
    return size


def _number(name: str, value: Any) -> float:
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        shape = getattr(value, "shape", None)
        what = f"a {type(value).__name__}" + (f" of shape {tuple(shape)}" if shape is not None else "")
        raise JobError(f"metric {name!r} is {what}: give a single number to job.commit") from None
