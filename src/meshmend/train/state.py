"""A worker's state as bytes, for spares, newcomers and checkpoints, and as a seal that shows when two differ."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from meshmend.errors import JobError
from meshmend.train.wire import leaves_of, rebuilt

SEAL_BITS = 48


def seal_of(tree: Any) -> int:
    """A hash of all bits of a state, quick enough for every step: any flipped bit changes it."""
    out = 0
    for _, value in leaves_of(tree):
        data = np.ascontiguousarray(np.asarray(value).reshape(-1)).view(np.uint8)
        words = data[: len(data) // 8 * 8].view(np.uint64)
        rest = int.from_bytes(data[len(words) * 8 :].tobytes(), "little")
        out = (out * 0x9E3779B97F4A7C15 + int(np.add.reduce(words)) + rest + len(data)) & (2**64 - 1)
    return int((out ^ out >> SEAL_BITS) & (2**SEAL_BITS - 1))


def flipped(tree: Any) -> Any:
    """The same state with one bit of its first leaf changed, for tests."""
    values = [np.array(value) for _, value in leaves_of(tree)]
    values[0].reshape(-1).view(np.uint8)[0] ^= 1
    return rebuilt(tree, values)


def to_bytes(tree: Any, **about: Any) -> bytes:
    """A state and some numbers about it: a line of JSON that describes the arrays, then the arrays."""
    arrays = [np.asarray(value) for _, value in leaves_of(tree)]
    names = [name for name, _ in leaves_of(tree)]
    head = {
        "about": about,
        "leaves": [[n, list(a.shape), a.dtype.str] for n, a in zip(names, arrays, strict=True)],
    }
    return json.dumps(head).encode() + b"\n" + b"".join(array.tobytes() for array in arrays)


def from_bytes(data: bytes, like: Any) -> tuple[Any, dict[str, Any]]:
    """The state and the numbers, in a tree like the given one; another shape is refused with the leaf's name."""
    head, _, body = data.partition(b"\n")
    described = json.loads(head)
    found = leaves_of(like)
    begin, values = 0, []
    if [name for name, _ in found] != [name for name, _, _ in described["leaves"]]:
        raise JobError(
            f"the state that came has the leaves {[n for n, _, _ in described['leaves']]}, but this worker's has "
            f"{[n for n, _ in found]}: all workers must run the same script"
        )
    for name, shape, dtype in described["leaves"]:
        array = np.frombuffer(body, np.dtype(dtype), int(np.prod(shape, dtype=np.int64)), begin).reshape(shape)
        begin += array.nbytes
        mine = np.asarray(dict(found)[name])
        if mine.shape != array.shape or mine.dtype != array.dtype:
            raise JobError(
                f"leaf {name!r} of the state that came has shape {array.shape} and type {array.dtype}, but here it "
                f"has {mine.shape} and {mine.dtype}: all workers must run the same script"
            )
        values.append(array.copy())
    return rebuilt(like, values), described["about"]
