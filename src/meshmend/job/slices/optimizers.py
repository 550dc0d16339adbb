"""What `job.share(weights, optimizer=…)` takes: an optimizer as functions of a slice.

    mm.optimizer(init, update)     two functions of flat float32 arrays; `update` may ask for norms of whole tensors
    mm.clipped(optimizer, 1.0)     any of these, with its gradients clipped by their global norm
    mm.lars(…), mm.lamb(…)         see `large_batch.py`
    optax.adam(1e-3)               any transformation of optax that works element by element

A slice is a stretch of the flat weights, so an optimizer that looks at whole tensors by itself (a norm, a matrix)
cannot be cut. Whether it does is found by trying it, on tensors and on slices of the same numbers
(`frameworks/elementwise.py`). With `slices="tensors"` every tensor is whole, and it may look at it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from meshmend.base.signatures import takes
from meshmend.errors import JobError
from meshmend.job.frameworks.arrays import leaves_of, rebuilt
from meshmend.job.frameworks.elementwise import (
    MATRICES,
    Trial,
    of_functions,
    of_transformation,
    try_out,
    try_tensors,
    try_with_norms,
)
from meshmend.job.reduction.exact import Floats
from meshmend.job.reduction.norms import clipping
from meshmend.job.reduction.pieces import Pieces
from meshmend.job.slices.holder import SliceOptimizer, State

Init = Callable[[Floats], Any]
Update = Callable[..., Any]


class Sliced(Protocol):
    """Any optimizer that a job can shard."""

    def trial(self, *, tensors: bool) -> Trial:
        """What comes of trying it on slices of small tensors, or on the tensors one by one."""
        ...

    def of_slices(self, longest: int, *, tensors: bool) -> SliceOptimizer:
        """As a holder uses it; slices have at most so many numbers."""
        ...


@dataclass(frozen=True)
class Optimizer:
    """Two functions of a slice, with any tree of arrays as their state; made by `mm.optimizer`."""

    init: Init
    update: Update

    def trial(self, *, tensors: bool) -> Trial:
        """What comes of trying it."""
        if inspect.isgeneratorfunction(self.update):
            return try_with_norms(self.init, _placed(self.update))
        return (try_tensors if tensors else try_out)(of_functions(self.init, self.update))

    def of_slices(self, longest: int, *, tensors: bool) -> SliceOptimizer:
        """As a holder uses it."""
        del longest
        if inspect.isgeneratorfunction(self.update):
            wants = try_with_norms(self.init, _placed(self.update)).wants
            return SliceOptimizer(*_with_norms(self.init, _placed(self.update)), wants=wants)
        return by_tensor(self.init, self.update) if tensors else of_slices(self.init, self.update)


@dataclass(frozen=True)
class Transformation:
    """A transformation of optax, or anything with the same two methods."""

    given: Any

    def trial(self, *, tensors: bool) -> Trial:
        """What comes of trying it."""
        return (try_tensors if tensors else try_out)(of_transformation(self.given))

    def of_slices(self, longest: int, *, tensors: bool) -> SliceOptimizer:
        """As a holder uses it."""
        from meshmend.job.frameworks.jax.optimizer import PaddedOptimizer, ShapedOptimizer

        if tensors:
            shaped = ShapedOptimizer(self.given)
            return by_tensor(shaped.init, shaped.update)
        padded = PaddedOptimizer(self.given, longest)
        return of_slices(padded.init, padded.update)


@dataclass(frozen=True)
class TorchOptimizer:
    """An optimizer of PyTorch: `mm.torch.ShardedOptimizer`."""

    given: Any

    def trial(self, *, tensors: bool) -> Trial:
        """What comes of trying its class; some take matrices only."""
        if not tensors:
            return try_out(self.given.trial())
        try:
            return try_tensors(self.given.trial())
        except ValueError:
            return try_tensors(self.given.trial(), MATRICES)

    def of_slices(self, longest: int, *, tensors: bool) -> SliceOptimizer:
        """As a holder uses it."""
        del longest
        return SliceOptimizer(self.given.init_slice, self.given.update_slice, tensors=tensors)


@dataclass(frozen=True)
class Averaged:
    """An optimizer that gets means in place of sums where `given`, a `mm.torch.ShardedOptimizer`, says so."""

    inner: Sliced
    given: Any

    def trial(self, *, tensors: bool) -> Trial:
        """Division works for any slices."""
        return self.inner.trial(tensors=tensors)

    def of_slices(self, longest: int, *, tensors: bool) -> SliceOptimizer:
        """The same, with a division first."""
        inner, given = self.inner.of_slices(longest, tensors=tensors), self.given

        def update(weights: Floats, gradients: Floats, state: State, pieces: Pieces) -> Any:
            divided = gradients if given.divisor is None else gradients / given.divisor
            return inner.update(weights, divided, state, pieces)

        return replace(inner, update=update)


def of_torch(given: Any) -> Sliced:
    """What makes the updates of a `mm.torch.ShardedOptimizer`."""
    inner: Sliced = TorchOptimizer(given) if given.given is None else given.given
    return Averaged(inner if given.clip is None else clipped(inner, given.clip), given)


@dataclass(frozen=True)
class Clipped:
    """An optimizer whose gradients are clipped by their global norm."""

    inner: Sliced
    most: float

    def trial(self, *, tensors: bool) -> Trial:
        """Clipping works for any slices."""
        return self.inner.trial(tensors=tensors)

    def of_slices(self, longest: int, *, tensors: bool) -> SliceOptimizer:
        """One more stage before those of the optimizer."""
        inner = self.inner.of_slices(longest, tensors=tensors)

        def update(weights: Floats, gradients: Floats, state: State, pieces: Pieces) -> Any:
            norm = yield gradients
            done = inner.update(weights, gradients * clipping(norm.all, self.most), state, pieces)
            return (yield from done) if inner.wants else done

        return replace(inner, update=update, wants=(1, *inner.wants))


def of_slices(init: Init, update: Update) -> SliceOptimizer:
    """Functions of a slice, with their state as arrays by name."""
    known = _Known(init)

    def step(weights: Floats, gradients: Floats, state: State, pieces: Pieces) -> tuple[Floats, State]:
        del pieces
        new, tree = update(weights, gradients, known.tree(weights, state))
        return np.asarray(new), arrays(tree)

    return SliceOptimizer(lambda weights, _: known.begin(weights), step)


def _with_norms(init: Init, update: Update) -> tuple[Any, Any]:
    """The same for a generator."""
    known = _Known(init)

    def step(weights: Floats, gradients: Floats, state: State, pieces: Pieces) -> Any:
        new, tree = yield from update(weights, gradients, known.tree(weights, state), pieces)
        return np.asarray(new), arrays(tree)

    return lambda weights, _: known.begin(weights), step


def by_tensor(init: Init, update: Update) -> SliceOptimizer:
    """Functions of a tensor, for slices that hold whole ones; their states lie beside each other."""

    def begin(weights: Floats, pieces: Pieces) -> State:
        found: State = {}
        for place, piece in enumerate(pieces.pieces):
            tree = init(weights[piece.numbers].reshape(piece.shape).copy())
            found |= {f"{place}.{name}": value for name, value in arrays(tree).items()}
        return found

    def step(weights: Floats, gradients: Floats, state: State, pieces: Pieces) -> tuple[Floats, State]:
        out, found = np.empty_like(weights), dict[str, Any]()
        for place, piece in enumerate(pieces.pieces):
            here, shape = piece.numbers, piece.shape
            known = _Known(init)
            known.begin(weights[here].reshape(shape))
            mine = {name.removeprefix(f"{place}."): v for name, v in state.items() if name.startswith(f"{place}.")}
            tree = known.tree(weights[here], mine)
            new, tree = update(weights[here].reshape(shape), gradients[here].reshape(shape), tree)
            out[here] = np.asarray(new, np.float32).reshape(-1)
            found |= {f"{place}.{name}": value for name, value in arrays(tree).items()}
        return out, found

    return SliceOptimizer(begin, step, tensors=True)


class _Known:
    """What a state of an optimizer is like, once that is known."""

    def __init__(self, init: Init) -> None:
        self._init, self._tree, self._made = init, None, False

    def begin(self, weights: Floats) -> State:
        """A first state."""
        self._tree, self._made = self._init(weights.copy()), True
        return arrays(self._tree)

    def tree(self, weights: Floats, state: State) -> Any:
        """A state as the optimizer has it."""
        if not self._made:
            self.begin(weights)
        return rebuilt(self._tree, [state[name] for name, _ in leaves_of(self._tree)])


def optimizer(init: Init, update: Update) -> Optimizer:
    """An optimizer for `job.share(weights, optimizer=…)`, as two functions of a slice.

    `init(weights)` gives what it remembers at the beginning, any tree of arrays. `update(weights, gradients, state)`
    gives the new weights and the new state. Both get flat float32 arrays: a stretch of all weights, of any length.
    `gradients` are sums over the batch.

    An update that needs norms of whole tensors is a generator. It yields an array of its slice, or a tuple of them, and
    gets for each a norm over all slices: `norm.all` is that of the whole, and `norm.tensor` has for each number that of
    the tensor it belongs to. If `update` takes a fourth argument, that says which tensors the slice has numbers of:
    `pieces.matrices` is true for numbers of a tensor with two dimensions or more.
    """
    if not callable(init) or not callable(update):
        raise JobError(f"mm.optimizer got {init!r} and {update!r}; give it two functions, init and update")
    return Optimizer(init, update)


def clipped(optimizer: Any, norm: float) -> Clipped:
    """The same optimizer, with gradients that are scaled down where their global norm is more than `norm`.

    The norm is that of the sums over all lanes, of all weights together; it has the same bits for any number of
    workers. `optimizer` is what `job.share(optimizer=…)` takes.
    """
    if not isinstance(norm, (int, float)) or not norm > 0:
        raise JobError(f"mm.clipped got norm={norm!r}; give a number above 0")
    return Clipped(sliced(optimizer), float(norm))


def sliced(given: Any) -> Sliced:
    """What was given as `optimizer=`, as something that can be cut into slices."""
    if hasattr(given, "of_slices"):
        found: Sliced = given
        return found
    if callable(getattr(given, "init", None)) and callable(getattr(given, "update", None)):
        return Transformation(given)
    raise JobError(
        f"optimizer={given!r} was given to job.share; give mm.optimizer(init, update), or a transformation of optax"
    )


def checked(given: Any, slices: str | None = None) -> Sliced:
    """What was given as `optimizer=`, if it can be cut into such slices; refused with a sentence otherwise."""
    if slices not in (None, "tensors"):
        raise JobError(f'job.share got slices={slices!r}; give slices="tensors", or nothing')
    found, tensors = sliced(given), slices is not None
    try:
        trial = found.trial(tensors=tensors)
    except JobError:
        raise
    except Exception as error:
        raise JobError(
            f"the optimizer raised {type(error).__name__} ({error}) when it was tried on small arrays; it must take "
            "float32 arrays of any shape"
        ) from error
    if trial.elementwise:
        return found
    if tensors:
        raise JobError(
            "the optimizer computes different weights when it updates tensors one by one, as optimizers that use the "
            "norm of all gradients do; share the state without optimizer=, or use mm.clipped for clipping"
        )
    raise JobError(
        "the optimizer computes different weights when a tensor is cut into slices, as optimizers that use norms or "
        'matrices do; give slices="tensors" to keep every tensor whole, use mm.clipped, mm.lars or mm.lamb for '
        "norms, or share the state without optimizer="
    )


def arrays(tree: Any) -> State:
    """The arrays of a tree, by name."""
    return {name: np.asarray(value) for name, value in leaves_of(tree)}


def _placed(update: Update) -> Update:
    """An update that takes pieces, and passes them on to one that wants them."""
    return update if takes(update, 4) else lambda weights, gradients, state, _: update(weights, gradients, state)
