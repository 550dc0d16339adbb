"""What goes over the wire: a tree of gradients as one flat buffer, and behind it a footer.

    │ gradients and metrics, leaf after leaf │ a count a lane │ a digest a rank, in pieces │ leaving │

The footer rides in the same message and in the same kind of number, so its values are small whole numbers that every
kind adds exactly: a digest of 48 bits is three pieces of 16, and only its own rank writes it.
Where gradients travel as bf16 (`Bf16Sums`), they lie in pairs in the places of the first numbers, the rest is the same.
"""

from __future__ import annotations

import copy
import sys
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError
from meshmend.job.frameworks.base import Held
from meshmend.job.protocol import Total

WHOLE = 2**24
"""Whole numbers up to this one are exact as float32."""
PIECES = 3
ONCE = 8192
"""A lane counted once by rank s is ONCE + s, so that the sum shows both how often and, if once, by whom."""


@dataclass(frozen=True)
class Footer:
    """The last numbers of every message."""

    lanes: int
    ranks: int

    @property
    def size(self) -> int:
        """Numbers in the footer."""
        return self.lanes + PIECES * self.ranks + 1

    def write(self, buffer: npt.NDArray[Any], lanes: Sequence[int], rank: int, digest: int, leaving: bool) -> None:
        """Fill in one member's footer."""
        tail = buffer[len(buffer) - self.size :]
        tail[:] = 0
        tail[list(lanes)] = ONCE + rank
        for piece in range(PIECES):
            tail[self.lanes + PIECES * rank + piece] = digest >> (16 * piece) & 0xFFFF
        # A digest of 0 would look like an empty rank.
        tail[self.lanes + PIECES * rank] += 65536
        tail[-1] = leaving

    def read(self, buffer: npt.NDArray[Any]) -> Total:
        """What all members' footers add up to."""
        tail = buffer[len(buffer) - self.size :]
        pieces = tail[self.lanes : -1].reshape(self.ranks, PIECES).astype(np.int64)
        digests = {
            rank: int(sum(int(value) << (16 * piece) for piece, value in enumerate(row)))
            for rank, row in enumerate(pieces)
            if row[0]
        }
        counts, by = np.divmod(tail[: self.lanes].astype(np.int64), ONCE)
        return Total(counts.tolist(), digests, int(tail[-1]), by.tolist())


@dataclass(frozen=True)
class Leaf:
    """One array of a tree."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Numbers in it."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def whole(self) -> bool:
        """Whether it holds whole numbers: they travel as float32, and only where their sums stay exact."""
        return self.dtype.kind in "iu"


def leaves_of(tree: Any) -> list[tuple[str, Any]]:
    """The arrays of a tree with their names, in a fixed order.

    Where JAX is loaded it may be any tree of JAX's; those that are possible without it have the same names and order
    either way, as a script may load JAX when its job has begun.
    """
    if isinstance(tree, Held):
        return [*tree.leaves()]
    if "jax" in sys.modules:
        from meshmend.job.frameworks.jax import leaves_of

        return leaves_of(tree)
    return _plain_leaves(tree, "")


def rebuilt(tree: Any, values: list[Any]) -> Any:
    """A tree of the same shape with other arrays."""
    if "jax" in sys.modules:
        from meshmend.job.frameworks.jax import rebuilt

        return rebuilt(tree, values)
    return _plain_rebuilt(tree, list(values))


def _plain_leaves(tree: Any, name: str) -> list[tuple[str, Any]]:
    if tree is None:
        return []
    if isinstance(tree, dict):
        pairs = [(f"{name}.{key}" if name else str(key), tree[key]) for key in _sorted(tree)]
    elif isinstance(tree, (list, tuple)):
        fields = getattr(tree, "_fields", range(len(tree)))
        pairs = [(f"{name}.{key}" if name else str(key), value) for key, value in zip(fields, tree, strict=True)]
    else:
        return [(name or "value", tree)]
    return [leaf for key, value in pairs for leaf in _plain_leaves(value, key)]


def _sorted(tree: dict[Any, Any]) -> list[Any]:
    """The keys of a dict, as JAX orders them."""
    try:
        return list(tree) if isinstance(tree, OrderedDict) else sorted(tree)
    except TypeError:
        raise JobError(
            f"the keys {list(tree)} of a dict cannot be sorted, and all workers need the same order: give keys of one "
            "type, such as text"
        ) from None


def _plain_rebuilt(tree: Any, values: list[Any]) -> Any:
    if tree is None:
        return None
    if isinstance(tree, dict):
        made = copy.copy(tree)  # a dict of its own kind, with its keys in their order
        for key in _sorted(tree):
            made[key] = _plain_rebuilt(tree[key], values)
        return made
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_plain_rebuilt(value, values) for value in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(_plain_rebuilt(value, values) for value in tree)
    return values.pop(0)


class Layout:
    """Where each leaf of a tree lies in a flat buffer; leaves that cannot be summed are refused by their names."""

    def __init__(self, tree: Any, lanes: int = 1) -> None:
        self.tree = tree
        self.leaves = [Leaf(name, np.shape(value), np.asarray(value).dtype) for name, value in leaves_of(tree)]
        self._most = WHOLE // lanes
        for leaf in self.leaves:
            # bf16 and smaller have no kind of their own in numpy.
            if leaf.dtype.kind not in "iuf" and not leaf.dtype.name.startswith(("bfloat", "float")):
                raise JobError(
                    f"leaf {leaf.name!r} has type {leaf.dtype}, which is not summed: return real numbers, such as "
                    "float32 (a complex leaf as two of them)"
                )
        self.bounds = np.concatenate([[0], np.cumsum([leaf.size for leaf in self.leaves])]).astype(np.int64)

    @property
    def size(self) -> int:
        """Numbers in all leaves."""
        return int(self.bounds[-1])

    @property
    def number(self) -> int:
        """Differs where the leaves' names, shapes or types do."""
        return zlib.crc32(repr(self.leaves).encode())

    def arrays(self, tree: Any) -> Iterator[npt.NDArray[Any]]:
        """The leaves of a tree as flat arrays; one of another shape is refused with the leaf's name."""
        found = leaves_of(tree)
        if [name for name, _ in found] != [leaf.name for leaf in self.leaves]:
            raise JobError(
                f"the tree has the leaves {[name for name, _ in found]}, but it began with "
                f"{[leaf.name for leaf in self.leaves]}: return the same tree for every lane"
            )
        for leaf, (_, value) in zip(self.leaves, found, strict=True):
            array = np.asarray(value)
            if array.shape != leaf.shape or array.dtype != leaf.dtype:
                raise JobError(
                    f"leaf {leaf.name!r} has shape {array.shape} and type {array.dtype}, but began with {leaf.shape} "
                    f"and {leaf.dtype}: return the same shapes for every lane"
                )
            if leaf.whole and (array.max(initial=0) > self._most or array.min(initial=0) < -self._most):
                raise JobError(
                    f"leaf {leaf.name!r} is of whole numbers, and one of them is beyond {self._most}: the sum over all "
                    f"lanes must stay within {WHOLE} to be exact, so return it as float32"
                )
            yield array.reshape(-1)

    def add(self, tree: Any, out: npt.NDArray[Any], *, first: bool) -> None:
        """Add a tree to a flat buffer; the first one is written over what is there, so nobody has to zero it."""
        for begin, array in zip(self.bounds, self.arrays(tree), strict=False):
            place = out[begin : begin + len(array)]
            if first:
                np.copyto(place, array, casting="unsafe")
            else:
                place += array.astype(place.dtype, copy=False)

    def unpack(self, flat: npt.NDArray[Any]) -> Any:
        """The tree that a flat buffer holds, as new arrays of the leaves' own types."""
        return self.rebuild(part.astype(leaf.dtype) for leaf, part in zip(self.leaves, self.parts(flat), strict=True))

    def parts(self, flat: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
        """The leaves of a flat buffer, as they lie there."""
        for begin, end in pairwise(self.bounds):
            yield flat[begin:end]

    def rebuild(self, arrays: Iterable[npt.NDArray[Any]]) -> Any:
        """The tree of these flat arrays, in the leaves' own shapes and types."""
        values = [
            array.astype(leaf.dtype, copy=False).reshape(leaf.shape)
            for leaf, array in zip(self.leaves, arrays, strict=True)
        ]
        return rebuilt(self.tree, values)
