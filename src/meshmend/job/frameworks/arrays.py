"""A state that is a tree of arrays, replaced at every commit: numpy's, or JAX's where JAX is loaded."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError
from meshmend.job.frameworks.base import Framework
from meshmend.job.state.kinds import Kinds
from meshmend.job.state.tree import Leaves, digest_of, plain_leaves, plain_rebuilt


def leaves_of(tree: Any) -> list[tuple[str, Any]]:
    """The leaves of a tree by name, in a fixed order.

    Where JAX is loaded, it may be any tree that JAX knows. Trees that are possible without JAX have the same names and
    order either way, because a script may load JAX after its job has begun.
    """
    if "jax" in sys.modules:
        from meshmend.job.frameworks import jax

        return jax.leaves_of(tree)
    return plain_leaves(tree)


def rebuilt(tree: Any, values: Sequence[Any]) -> Any:
    """A tree of the same shape with other leaves."""
    if "jax" in sys.modules:
        from meshmend.job.frameworks import jax

        return jax.rebuilt(tree, values)
    return plain_rebuilt(tree, values)


def adopted(tree: Any, values: Sequence[Any]) -> Any:
    """Return a tree of the same shape with host arrays; if a leaf is on several devices, the new one is too."""
    if "jax" in sys.modules:
        from meshmend.job.frameworks import jax

        pairs = zip(jax.leaves_of(tree), values, strict=True)
        return jax.rebuilt(tree, [jax.placed(leaf, value) for (_, leaf), value in pairs])
    return plain_rebuilt(tree, values)


def copied(tree: Any, values: Sequence[Any]) -> list[Any]:
    """Arrays of the host as the leaves of this tree are: those of JAX as copies of its own, others as they are."""
    if "jax" in sys.modules:
        from meshmend.job.frameworks import jax

        return [jax.copied(leaf, value) for (_, leaf), value in zip(jax.leaves_of(tree), values, strict=True)]
    return list(values)


def is_immutable(value: Any) -> bool:
    """Whether a leaf never changes."""
    if "jax" in sys.modules:
        from meshmend.job.frameworks import jax

        return jax.is_immutable(value)
    return False


class TreeState(Framework):
    """A tree of arrays."""

    def __init__(self, tree: Any) -> None:
        self.tree, self._found = tree, leaves_of(tree)
        self._kinds = Kinds(self._found)

    @property
    def shared(self) -> Any:
        """The tree."""
        return self.tree

    def leaves(self) -> Leaves:
        """Its arrays on the host."""
        return [(name, np.asarray(value)) for name, value in self._found]

    def template(self) -> Leaves | None:
        """Every tree must have these leaves."""
        return self.leaves()

    def adopt(self, leaves: Leaves) -> None:
        """Put other arrays into a tree of the same shape."""
        self.tree = adopted(self.tree, [value for _, value in leaves])
        self._found = leaves_of(self.tree)

    def commit(self, state: tuple[Any, ...]) -> None:
        """Take the tree after a step."""
        if len(state) != 1:
            raise JobError(f"job.commit got {len(state)} states; give it one tree, the state after this step")
        found = leaves_of(state[0])
        self._kinds.check(found)
        self.tree, self._found = state[0], found

    def snapshot(self) -> Leaves:
        """Copies of the arrays that can change."""
        return [
            (name, np.asarray(value) if is_immutable(value) else np.array(value, order="C"))
            for name, value in self._found
        ]

    def digest(self, *more: npt.NDArray[Any]) -> int:
        """Return a hash of the leaves as the user gave them; a leaf that is not an array is refused by its type."""
        return digest_of([*self._found, *(("", array) for array in more)])

    def leaves_of(self, tree: Any) -> list[tuple[str, Any]]:
        """The leaves of a lane's tree."""
        return leaves_of(tree)

    def rebuilt(self, tree: Any, values: Sequence[Any]) -> Any:
        """A tree of the same shape with other leaves."""
        return rebuilt(tree, values)
