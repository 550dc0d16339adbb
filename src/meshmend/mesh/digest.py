"""A digest of arrays: what a proof names the plan or schedule by that it is a proof of."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

SIZE = 16
"""Bytes of a digest."""


def digest_of(head: str, columns: Iterable[Any]) -> bytes:
    """The digest of some words and arrays: of the arrays' types and shapes as well as their contents."""
    found = hashlib.blake2b(head.encode(), digest_size=SIZE)
    for column in columns:
        array = np.ascontiguousarray(column)
        found.update(f"|{type(column).__name__} {array.dtype.str} {np.shape(column)}|".encode())
        found.update(array.data if array.dtype.kind in "biuf" else repr(column).encode())
    return found.digest()


def read_only(array: Any) -> Any:
    """A view that cannot be written to: what was proved must not change afterwards. Other things stay as they are."""
    if not isinstance(array, np.ndarray) or not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view
