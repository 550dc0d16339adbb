"""The weights of a sharded job: a tree of float32 arrays whose numbers all lie in one flat array.

A round changes that array in place, in the memory that the worker shares with its courier. So the arrays that a numpy
script gets are views of it that cannot be written to, and change with every update; those of JAX are copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError
from meshmend.job.frameworks.arrays import copied, leaves_of, rebuilt
from meshmend.job.frameworks.base import Framework
from meshmend.job.state.tree import Leaves

Floats = npt.NDArray[np.float32]


class Weights(Framework):
    """A tree of weights."""

    def __init__(self, tree: Any) -> None:
        leaves = leaves_of(tree)
        for name, value in leaves:
            if str(getattr(value, "dtype", type(value).__name__)) != "float32":
                kind = getattr(value, "dtype", type(value).__name__)
                raise JobError(
                    f"leaf {name!r} of the weights has type {kind}, but sharded updates need float32; whatever is not "
                    "a weight, such as a counter, belongs in the optimizer's state"
                )
        self._tree, self._names = tree, [name for name, _ in leaves]
        self._shapes = [tuple(value.shape) for _, value in leaves]
        self.sizes = [int(np.prod(shape, dtype=np.int64)) for shape in self._shapes]
        """How many numbers each leaf has."""
        if not sum(self.sizes):
            raise JobError("job.share got an optimizer and no weights; give it a tree of float32 arrays")
        self.flat: Floats = np.concatenate([np.asarray(value).reshape(-1) for _, value in leaves])
        """All numbers, leaf after leaf."""
        self.more = False
        """Whether lanes give more than gradients."""

    def move(self, flat: Floats) -> None:
        """Have the numbers in this array from now on."""
        flat[:] = self.flat
        self.use(flat)

    def use(self, flat: Floats) -> None:
        """Have the numbers in this array, where they are already."""
        self.flat = flat

    def extras(self) -> Leaves:
        """What all workers have besides weights; it does not change within a round."""
        return []

    @property
    def shared(self) -> Any:
        """The tree, as the script gets it."""
        return rebuilt(self._tree, copied(self._tree, [value for _, value in self.leaves()]))

    def leaves(self) -> Leaves:
        """Views of the flat array."""
        found: Leaves = []
        begin = 0
        for name, shape, size in zip(self._names, self._shapes, self.sizes, strict=True):
            view = self.flat[begin : begin + size].reshape(shape)
            view.flags.writeable = False
            found.append((name, view))
            begin += size
        return found

    def template(self) -> Leaves | None:
        """What a state must have."""
        return self.leaves()

    def adopt(self, leaves: Leaves, extras: Leaves | None = None) -> None:
        """Take other numbers, and other extras."""
        del extras
        self.flat[:] = np.concatenate([np.asarray(value).reshape(-1) for _, value in leaves])

    def commit(self, state: tuple[Any, ...]) -> None:
        """Nothing is left to take: `job.update` has it all."""
        if state:
            raise JobError(
                "job.commit got a state, but in a job with an optimizer job.update has made it already: give "
                "job.commit metrics only"
            )

    def flip_bit(self) -> None:
        """Change one bit of the first number."""
        self.flat.view(np.uint8)[0] ^= 1

    def holds(self, *, summed: bool) -> bool:
        """Until the next update."""
        return not summed

    def leaves_of(self, tree: Any) -> list[tuple[str, Any]]:
        """The leaves of a lane's tree."""
        return leaves_of(tree)

    def rebuilt(self, tree: Any, values: Sequence[Any]) -> Any:
        """A tree of the same shape with other leaves."""
        return rebuilt(tree, values)

    def end(self, result: Any) -> Any:
        """Gradients, and whatever else is to be summed, as a pair."""
        if self._alike(result):
            return result, None
        if isinstance(result, tuple) and len(result) == 2 and self._alike(result[0]):
            self.more = True
            return result
        raise JobError(
            "the function given to job.update must return gradients of the same names and shapes as the weights, or a "
            f"pair of such gradients and more to be summed; it returned {_described(result)}, and the weights are "
            f"{_described(rebuilt(self._tree, [value for _, value in self.leaves()]))}"
        )

    def drop(self) -> None:
        """Forget what a lane was like."""
        self.more = False

    def _alike(self, tree: Any) -> bool:
        found = leaves_of(tree)
        return [name for name, _ in found] == self._names and self._shapes == [
            tuple(getattr(value, "shape", (-1,))) for _, value in found
        ]

    def take(self, total: Any, lanes: int, *, mean: bool = False) -> Any:
        """What `job.update` returns: the weights, and the sums of what lanes gave besides gradients."""
        del lanes, mean
        return (self.shared, total[0]) if self.more else self.shared


def weights_of(state: tuple[Any, ...]) -> Weights:
    """What holds the weights that were given to `job.share` with an optimizer."""
    if len(state) != 1:
        raise JobError(f"job.share got {len(state)} states and an optimizer; give it one tree of weights")
    return Weights(state[0])


def _described(tree: Any) -> str:
    leaves = leaves_of(tree)
    shown = ", ".join(f"{name} {tuple(getattr(value, 'shape', ()))}" for name, value in leaves[:3])
    return shown + (f" and {len(leaves) - 3} more" if len(leaves) > 3 else "")
