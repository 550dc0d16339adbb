"""What `job.share(weights, optimizer=…)` takes: an optimizer that works element by element, as functions of a slice.

    mm.optimizer(init, update)     two functions of flat float32 arrays
    optax.adam(1e-3)               any transformation of optax that works element by element

A slice is a stretch of the flat weights, so an optimizer that looks at whole tensors (a norm, a matrix) cannot be cut.
Whether it does is found by trying it, on tensors and on slices of the same numbers (`frameworks/elementwise.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshmend.errors import JobError
from meshmend.job.frameworks.arrays import leaves_of, rebuilt
from meshmend.job.frameworks.elementwise import of_functions, try_out
from meshmend.job.holder import SliceOptimizer, State
from meshmend.job.reduction.exact import Floats

Init = Callable[[Floats], Any]
Update = Callable[[Floats, Floats, Any], tuple[Floats, Any]]


class Optimizer:
    """Two functions of a slice, with any tree of arrays as their state; made by `mm.optimizer`."""

    def __init__(self, init: Init, update: Update) -> None:
        self.init, self.update = init, update
        self._tree: Any = None
        """What its state is like."""

    def of_slices(self) -> SliceOptimizer:
        """As a holder uses it: with its state as arrays by name."""
        return SliceOptimizer(self._begin, self._step)

    def _begin(self, weights: Floats) -> State:
        self._tree = self.init(weights.copy())
        return _arrays(self._tree)

    def _step(self, weights: Floats, gradients: Floats, state: State) -> tuple[Floats, State]:
        if self._tree is None:
            self._tree = self.init(weights.copy())
        names = [name for name, _ in leaves_of(self._tree)]
        new, tree = self.update(weights, gradients, rebuilt(self._tree, [state[name] for name in names]))
        return np.asarray(new), _arrays(tree)


def optimizer(init: Init, update: Update) -> Optimizer:
    """An optimizer for `job.share(weights, optimizer=…)` that works element by element.

    `init(weights)` gives what it remembers at the beginning, any tree of arrays. `update(weights, gradients, state)`
    gives the new weights and the new state. Both get flat float32 arrays: a stretch of all weights, of any length.
    `gradients` are sums over the batch.
    """
    if not callable(init) or not callable(update):
        raise JobError(f"mm.optimizer got {init!r} and {update!r}; give it two functions, init and update")
    return Optimizer(init, update)


def checked(given: Any) -> Optimizer:
    """What was given as `optimizer=`, if it can be cut into slices; refused with a sentence otherwise."""
    if not isinstance(given, Optimizer):
        raise JobError(
            f"optimizer={given!r} was given to job.share; give mm.optimizer(init, update), or a transformation of optax"
        )
    try:
        trial = try_out(of_functions(given.init, given.update))
    except Exception as error:
        raise JobError(
            f"the optimizer raised {type(error).__name__} ({error}) when it was tried on small arrays; its functions "
            "must take float32 arrays of any shape"
        ) from error
    if not trial.elementwise:
        raise JobError(
            "the optimizer gives other weights for slices of a tensor than for the whole, as one does that looks at "
            "norms or matrices; updates can be sharded only where each number is updated by itself: share the state "
            "without optimizer="
        )
    return given


def _arrays(tree: Any) -> State:
    return {name: np.asarray(value) for name, value in leaves_of(tree)}
