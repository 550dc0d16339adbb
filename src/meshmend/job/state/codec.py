"""A worker's state as bytes, for spares, newcomers and checkpoints, and as a digest that shows when two differ."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from meshmend.errors import JobError
from meshmend.job.frameworks.base import Held, dtype_of
from meshmend.job.reduction.wire import leaves_of, rebuilt

SEAL_BITS = 48


def digest_of(*trees: Any) -> int:
    """A hash of all bits of a state and of their places, quick enough for every step: XXH3, leaf after leaf."""
    out = 0
    for name, value in (leaf for tree in trees for leaf in leaves_of(tree)):
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise JobError(
                f"leaf {name!r} of the state is a {type(value).__name__}, which is no array: give dicts, lists and "
                "tuples of arrays, or register its class as a tree with JAX (jax.tree_util.register_dataclass)"
            )
        data = np.ascontiguousarray(array.reshape(-1)).view(np.uint8)
        out = xxh3_64_intdigest(data.data, seed=out)  # so that it matters where one leaf ends and the next begins
    return int((out ^ out >> SEAL_BITS) & (2**SEAL_BITS - 1))


def flipped(tree: Any) -> Any:
    """The same state with one bit of its first leaf changed, for tests."""
    if isinstance(tree, Held):
        leaves = {name: np.array(value) for name, value in tree.leaves()}
        next(iter(leaves.values())).reshape(-1).view(np.uint8)[0] ^= 1
        tree.adopt(leaves)
        return tree
    values = [np.array(value) for _, value in leaves_of(tree)]
    values[0].reshape(-1).view(np.uint8)[0] ^= 1
    return rebuilt(tree, values)


def pieces(tree: Any, **about: Any) -> list[Any]:
    """A state and some numbers about it, to be written one after another: a length, what the arrays are, the arrays.

    The arrays are given as they are: nothing is copied here.
    """
    found = [(name, np.ascontiguousarray(value).reshape(np.shape(value))) for name, value in leaves_of(tree)]
    head = json.dumps({"about": about, "leaves": [[n, list(a.shape), a.dtype.name] for n, a in found]}).encode()
    return [struct.pack("<q", len(head)), head, *(array.reshape(-1).view(np.uint8) for _, array in found)]


def from_pieces(data: npt.NDArray[np.uint8], like: Any) -> tuple[Any, dict[str, Any]]:
    """The state and the numbers, in a tree like the given one; another shape is refused with the leaf's name."""
    (length,) = struct.unpack("<q", data[:8].tobytes())
    described = json.loads(data[8 : 8 + length].tobytes())
    body = data[8 + length :]
    begin, values = 0, []
    if isinstance(like, Held):
        for _, shape, dtype in described["leaves"]:
            kind = dtype_of(dtype)
            end = begin + kind.itemsize * math.prod(shape)
            values.append(body[begin:end].copy().view(kind).reshape(shape))
            begin = end
        like.adopt({name: value for (name, _, _), value in zip(described["leaves"], values, strict=True)})
        return like, described["about"]
    found = leaves_of(like)
    if [name for name, _ in found] != [name for name, _, _ in described["leaves"]]:
        raise JobError(
            f"the state that came has the leaves {[n for n, _, _ in described['leaves']]}, but this worker's has "
            f"{[n for n, _ in found]}: all workers must run the same script"
        )
    for (name, shape, dtype), (_, value) in zip(described["leaves"], found, strict=True):
        mine = np.asarray(value)
        if list(mine.shape) != shape or mine.dtype.name != dtype:
            raise JobError(
                f"leaf {name!r} of the state that came has shape {shape} and type {dtype}, but here it has "
                f"{list(mine.shape)} and {mine.dtype.name}: all workers must run the same script"
            )
        values.append(body[begin : begin + mine.nbytes].copy().view(mine.dtype).reshape(shape))
        begin += mine.nbytes
    return rebuilt(like, values), described["about"]
