"""A hash of a whole state, small enough to ride on every message and quick enough to take in every step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from meshmend.errors import JobError

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
    return int((out ^ out >> DIGEST_BITS) & (2**DIGEST_BITS - 1))
