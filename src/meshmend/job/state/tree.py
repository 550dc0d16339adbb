"""Trees of plain Python containers: what the arrays in them are called, and in which order they come.

Names and order are the same as JAX's for every tree that both can take apart, because a script may load JAX in the
middle of a job (`frameworks/arrays.py` chooses between the two).

The digest is a hash of all of them, small enough to ride on every message and quick enough to take in every step.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from meshmend.errors import JobError

Leaves = list[tuple[str, npt.NDArray[Any]]]
"""The arrays of a state or a gradient, by name, in a fixed order; some may be `OnDevice`, like arrays to numpy."""


@dataclass(frozen=True, eq=False)
class OnDevice:
    """An array on a device: its shape and type are known, and it is copied to the host when numpy needs it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fetch: Callable[[], npt.NDArray[Any]] = field(repr=False)
    lies: Callable[[], tuple[int, Any]] | None = field(default=None, repr=False)
    """Return where its bytes are on their device, contiguous and complete: the address, and what keeps them alive."""
    into: Callable[[int], None] | None = field(default=None, repr=False)
    """Copies its bytes to an address of the same device, and waits for that."""

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.fetch(), dtype, copy=copy)

    def __bytes__(self) -> bytes:
        return self.fetch().tobytes()


def plain_leaves(tree: Any, name: str = "") -> list[tuple[str, Any]]:
    """The leaves of a tree of dicts, lists and tuples, by name; None is an empty tree."""
    if tree is None:
        return []
    if isinstance(tree, dict):
        pairs = [(f"{name}.{key}" if name else str(key), tree[key]) for key in _sorted(tree)]
    elif isinstance(tree, (list, tuple)):
        fields = getattr(tree, "_fields", range(len(tree)))
        pairs = [(f"{name}.{key}" if name else str(key), value) for key, value in zip(fields, tree, strict=True)]
    else:
        return [(name or "value", tree)]
    return [leaf for key, value in pairs for leaf in plain_leaves(value, key)]


def plain_rebuilt(tree: Any, values: Sequence[Any]) -> Any:
    """A tree of the same shape with other leaves."""
    return _rebuilt(tree, list(values))


def _rebuilt(tree: Any, values: list[Any]) -> Any:
    if tree is None:
        return None
    if isinstance(tree, dict):
        made = copy.copy(tree)  # a dict of the same kind, with its keys in their order
        for key in _sorted(tree):
            made[key] = _rebuilt(tree[key], values)
        return made
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_rebuilt(value, values) for value in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(_rebuilt(value, values) for value in tree)
    return values.pop(0)


def _sorted(tree: dict[Any, Any]) -> list[Any]:
    """The keys of a dict, in JAX's order."""
    try:
        return list(tree) if isinstance(tree, OrderedDict) else sorted(tree)
    except TypeError:
        raise JobError(
            f"cannot sort the keys {list(tree)} of a dict, and all workers need the same order; use keys of one type, "
            "such as str"
        ) from None


DIGEST_BITS = 48
"""As many as the footer of a message carries."""


def digest_of(leaves: Iterable[tuple[str, Any]]) -> int:
    """A hash of all bits of these leaves and of their order: XXH3 on the host, leaf after leaf."""
    out = 0
    for name, value in leaves:
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise JobError(
                f"leaf {name!r} of the state is a {type(value).__name__}, not an array; use dicts, lists and tuples of "
                "arrays, or register its class with JAX (jax.tree_util.register_dataclass)"
            )
        data = np.ascontiguousarray(array.reshape(-1)).view(np.uint8)
        out = xxh3_64_intdigest(data.data, seed=out)  # so that it matters where one leaf ends and the next begins
    return folded(out)


def folded(number: int) -> int:
    """A hash of 64 bits as a digest."""
    return int((number ^ number >> DIGEST_BITS) & (2**DIGEST_BITS - 1))
