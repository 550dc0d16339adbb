"""The data of a job: something with a length that can be asked for several samples at once, or columns of it."""

from __future__ import annotations

from typing import Any

from meshmend.errors import JobError
from meshmend.job.data.lanes import Ids


def size_of(data: Any) -> int:
    """How many samples the data has; tuples and dicts are columns, which must have the same number."""
    columns = data.values() if isinstance(data, dict) else data if isinstance(data, tuple) else [data]
    sizes = {_size_of_column(column) for column in columns}
    if len(sizes) != 1:
        raise JobError(f"the columns of the data have {sorted(sizes)} samples; they must all have the same number")
    return sizes.pop()


def samples(data: Any, ids: Ids) -> Any:
    """Some samples of the data, column by column where it has several."""
    if isinstance(data, dict):
        return {name: column[ids] for name, column in data.items()}
    if isinstance(data, tuple):
        return tuple(column[ids] for column in data)
    return data[ids]


def _size_of_column(column: Any) -> int:
    kind = type(column).__name__
    if isinstance(column, (list, str, bytes, range, set)) or hasattr(column, "iloc"):
        raise JobError(
            f"the data is a {kind}, which cannot be indexed with an array of ids (data[ids]); pass "
            "numpy.asarray(data), or a tuple of arrays where samples have several parts"
        )
    try:
        size = len(column)
    except TypeError:
        size = -1
    if size < 0 or not hasattr(column, "__getitem__"):
        raise JobError(f"the data is a {kind}; pass something with len() and data[ids], such as an array")
    return size
