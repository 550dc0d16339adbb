"""Small values as text on their way to other workers: JSON, with words for what JSON lacks. Nothing is pickled.

Numbers, text, None, lists, tuples and dicts come back as they were; arrays of numpy, JAX and PyTorch as numpy arrays.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from meshmend.base.schema import loads
from meshmend.errors import FormatError, JobError
from meshmend.job.state.codec import dtype_of


def to_bytes(value: Any) -> bytes:
    """A value as text."""
    return json.dumps(_described(value), separators=(",", ":")).encode()


def from_bytes(data: bytes) -> Any:
    """The value that a text describes."""
    return _restored(loads(data))


def _described(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, dict):
        return {"dict": [[_described(key), _described(one)] for key, one in value.items()]}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_described(one) for one in value]}
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.dtype.kind in "biufc" and array.dtype.name.isidentifier():
            data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
            return {"array": [array.dtype.name, list(array.shape), data]}
    raise JobError(
        f"a {type(value).__name__} cannot be sent to other workers; use numbers, text, lists, tuples, dicts and arrays"
    )


def _restored(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    try:
        [(kind, parts)] = value.items()
        if kind == "dict":
            return {_restored(key): _restored(one) for key, one in parts}
        if kind in ("list", "tuple"):
            found = [_restored(one) for one in parts]
            return found if kind == "list" else tuple(found)
        name, shape, data = parts
        return np.frombuffer(base64.b64decode(data, validate=True), dtype_of(name)).reshape(shape).copy()
    except (ValueError, TypeError) as error:
        raise FormatError(f"the value that another worker sent arrived damaged ({error})") from None
