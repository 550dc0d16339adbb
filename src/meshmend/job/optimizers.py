"""What `job.share(weights, optimizer=…)` takes: an optimizer that works element by element, as functions of a slice.

    mm.optimizer(init, update)     two functions of flat float32 arrays
    optax.adam(1e-3)               any transformation of optax that works element by element

A slice is a stretch of the flat weights, so an optimizer that looks at whole tensors (a norm, a matrix) cannot be cut.
Whether it does is found by trying it, on tensors and on slices of the same numbers (`frameworks/elementwise.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshmend.errors import JobError
from meshmend.job.frameworks.arrays import leaves_of, rebuilt
from meshmend.job.frameworks.elementwise import Apply, of_functions, of_transformation, try_out
from meshmend.job.holder import SliceOptimizer, State
from meshmend.job.reduction.exact import Floats

Init = Callable[[Floats], Any]
Update = Callable[[Floats, Floats, Any], tuple[Floats, Any]]


@dataclass(frozen=True)
class Optimizer:
    """Two functions of a slice, with any tree of arrays as their state; made by `mm.optimizer`."""

    init: Init
    update: Update

    def trial(self) -> Apply:
        """A step of it, to be tried out."""
        return of_functions(self.init, self.update)

    def of_slices(self, longest: int) -> SliceOptimizer:
        """As a holder uses it; slices have at most so many numbers."""
        del longest
        return of_slices(self.init, self.update)


@dataclass(frozen=True)
class Transformation:
    """A transformation of optax, or anything with the same two methods."""

    given: Any

    def trial(self) -> Apply:
        """A step of it, to be tried out."""
        return of_transformation(self.given)

    def of_slices(self, longest: int) -> SliceOptimizer:
        """As a holder uses it; slices have at most so many numbers."""
        from meshmend.job.frameworks.jax.optimizer import PaddedOptimizer

        padded = PaddedOptimizer(self.given, longest)
        return of_slices(padded.init, padded.update)


def of_slices(init: Init, update: Update) -> SliceOptimizer:
    """Functions of a slice, with their state as arrays by name."""
    known: list[Any] = []
    """What a state is like, once that is known."""

    def begin(weights: Floats) -> State:
        tree = init(weights.copy())
        known[:] = [tree]
        return _arrays(tree)

    def step(weights: Floats, gradients: Floats, state: State) -> tuple[Floats, State]:
        if not known:
            begin(weights)
        names = [name for name, _ in leaves_of(known[0])]
        new, tree = update(weights, gradients, rebuilt(known[0], [state[name] for name in names]))
        return np.asarray(new), _arrays(tree)

    return SliceOptimizer(begin, step)


def optimizer(init: Init, update: Update) -> Optimizer:
    """An optimizer for `job.share(weights, optimizer=…)` that works element by element.

    `init(weights)` gives what it remembers at the beginning, any tree of arrays. `update(weights, gradients, state)`
    gives the new weights and the new state. Both get flat float32 arrays: a stretch of all weights, of any length.
    `gradients` are sums over the batch.
    """
    if not callable(init) or not callable(update):
        raise JobError(f"mm.optimizer got {init!r} and {update!r}; give it two functions, init and update")
    return Optimizer(init, update)


def checked(given: Any) -> Optimizer | Transformation:
    """What was given as `optimizer=`, if it can be cut into slices; refused with a sentence otherwise."""
    found: Optimizer | Transformation
    if isinstance(given, Optimizer):
        found = given
    elif callable(getattr(given, "init", None)) and callable(getattr(given, "update", None)):
        found = Transformation(given)
    else:
        raise JobError(
            f"optimizer={given!r} was given to job.share; give mm.optimizer(init, update), or a transformation of optax"
        )
    try:
        trial = try_out(found.trial())
    except Exception as error:
        raise JobError(
            f"the optimizer raised {type(error).__name__} ({error}) when it was tried on small arrays; it must take "
            "float32 arrays of any shape"
        ) from error
    if not trial.elementwise:
        raise JobError(
            "the optimizer gives other weights for slices of a tensor than for the whole, as one does that looks at "
            "norms or matrices; updates can be sharded only where each number is updated by itself: share the state "
            "without optimizer="
        )
    return found


def _arrays(tree: Any) -> State:
    return {name: np.asarray(value) for name, value in leaves_of(tree)}
