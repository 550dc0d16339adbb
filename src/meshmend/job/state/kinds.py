"""What the leaves of a state are: their names, shapes and types, which stay as `job.share` was given them.

A replacement and a resumed run load a state into the one that their own script shares, so they refuse leaves of other
kinds (`codec.py`, `safetensors.py`). Without a check at every commit, that would show only after the first failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshmend.errors import JobError

Kind = tuple[tuple[int, ...], Any]
"""Shape and type."""
LOST = "no replacement and no --resume could load it"


class Kinds:
    """The kinds of the leaves of a shared state."""

    def __init__(self, leaves: Sequence[tuple[str, Any]]) -> None:
        self._names, self._kinds = _taken(leaves)

    def check(self, leaves: Sequence[tuple[str, Any]]) -> None:
        """Refuse a committed state with leaves of other kinds, by the first of them."""
        names, kinds = _taken(leaves)
        if kinds == self._kinds and names == self._names:
            return
        shared, committed = dict(zip(self._names, self._kinds, strict=True)), dict(zip(names, kinds, strict=True))
        for name in (*shared, *committed):
            if name not in committed:
                raise JobError(
                    f"job.commit got a state without leaf {name!r}, which job.share was given: {LOST}; commit every "
                    "leaf that was shared"
                )
            if name not in shared:
                raise JobError(
                    f"job.commit got leaf {name!r}, which job.share was not given: {LOST}; share it too, with zeros "
                    "if it has no value yet"
                )
            _check(name, shared[name], committed[name])


def _taken(leaves: Sequence[tuple[str, Any]]) -> tuple[list[str], list[Kind]]:
    return [name for name, _ in leaves], [_kind(leaf) for _, leaf in leaves]


def _kind(leaf: Any) -> Kind:
    try:
        return leaf.shape, leaf.dtype
    except AttributeError:  # a number of Python's
        array = np.asarray(leaf)
        return array.shape, array.dtype


def _check(name: str, shared: Kind, committed: Kind) -> None:
    (shape, dtype), (new_shape, new_dtype) = shared, committed
    if getattr(new_dtype, "hasobject", False):
        return  # it is no array at all, and the digest says so
    word, new_word = _word(dtype), _word(new_dtype)
    if (tuple(shape), word) == (tuple(new_shape), new_word):
        return  # such as the other order of bytes
    if word == new_word:
        advice = "commit an array of the same shape, or share it in this shape"
    else:
        call = f".to(torch.{word})" if str(dtype).startswith("torch.") else f".astype(np.{word})"
        advice = f"convert it, for example with {call}, or share it in this type"
    raise JobError(
        f"job.commit got leaf {name!r} as {new_word}{list(new_shape)}, but job.share was given {word}{list(shape)}: "
        f"{LOST}; {advice}"
    )


def _word(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.") if not hasattr(dtype, "name") else str(dtype.name)
