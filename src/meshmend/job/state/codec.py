"""A worker's state as bytes, on its way to a spare or a newcomer.

│ length of the header │ header: JSON, what the arrays are and some facts about them │ array │ array │ …
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshmend.base.schema import Count, checked, loads
from meshmend.errors import FormatError, JobError
from meshmend.job.state.tree import Leaves, OnDevice


class Described(NamedTuple):
    """One array."""

    name: str
    shape: list[Count]
    dtype: str


@dataclass(frozen=True)
class Header:
    """All arrays, and the facts about them."""

    leaves: list[Described]
    about: dict[str, Any]


def encode(leaves: Leaves, **about: Any) -> list[Any]:
    """A state and some facts about it, as buffers to be written one after another.

    The arrays are not copied; one that is on a device becomes a piece that is fetched when it is written.
    """
    found = [(name, value if isinstance(value, OnDevice) else np.asarray(value)) for name, value in leaves]
    head = json.dumps({"about": about, "leaves": [[n, list(a.shape), a.dtype.name] for n, a in found]}).encode()
    return [struct.pack("<q", len(head)), head, *(_piece(array) for _, array in found)]


def _piece(array: npt.NDArray[Any] | OnDevice) -> Any:
    if isinstance(array, OnDevice):
        return OnDevice((array.nbytes,), np.dtype(np.uint8), lambda: _piece(np.asarray(array)))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def decode(data: npt.NDArray[np.uint8], template: Leaves | None) -> tuple[Leaves, dict[str, Any]]:
    """The arrays and the facts. With a template, other names, shapes or types than its own are refused by name."""
    header, body = _opened(data)
    types = [dtype_of(one.dtype) for one in header.leaves] if template is None else _checked_types(header, template)
    sizes = [dtype.itemsize * math.prod(one.shape) for one, dtype in zip(header.leaves, types, strict=True)]
    if sum(sizes) != len(body):
        raise _damaged(f"its arrays have {sum(sizes)} bytes, and {len(body)} came")
    begin, found = 0, []
    for (name, shape, _), dtype, size in zip(header.leaves, types, sizes, strict=True):
        found.append((name, body[begin : begin + size].copy().view(dtype).reshape(shape)))
        begin += size
    return found, header.about


def _opened(data: npt.NDArray[np.uint8]) -> tuple[Header, npt.NDArray[np.uint8]]:
    """The header of a state that was received, and the bytes after it."""
    length = struct.unpack("<q", data[:8].tobytes())[0] if len(data) >= 8 else -1
    if not 0 <= length <= len(data) - 8:
        raise _damaged(f"its header has {length} bytes, and {len(data)} came")
    try:
        return checked(Header, loads(data[8 : 8 + length].tobytes())), data[8 + length :]
    except FormatError as error:
        raise _damaged(str(error)) from None


def _damaged(why: str) -> FormatError:
    return FormatError(f"the state of another worker was damaged on its way here ({why}): resume from a checkpoint")


def _checked_types(header: Header, template: Leaves) -> list[np.dtype[Any]]:
    described = header.leaves
    if [name for name, _, _ in described] != [name for name, _ in template]:
        raise JobError(
            f"received a state with the leaves {[name for name, _, _ in described]}, but this worker's has "
            f"{[name for name, _ in template]}; run the same script on all workers"
        )
    for (name, shape, dtype), (_, mine) in zip(described, template, strict=True):
        if list(mine.shape) != shape or mine.dtype.name != dtype:
            raise JobError(
                f"leaf {name!r} of the received state has shape {shape} and type {dtype!r}, but here it has "
                f"{list(mine.shape)} and {mine.dtype.name}; run the same script on all workers"
            )
    return [mine.dtype for _, mine in template]


def dtype_of(name: str) -> np.dtype[Any]:
    """The type that a name in a file or a message means; only plain numbers are allowed."""
    try:
        found = np.dtype(name) if name.isidentifier() else None
    except TypeError:
        found = None
    # bf16 and smaller floats have no kind of their own in numpy.
    if found is None or not (found.kind in "biufc" or name.startswith(("bfloat", "float"))):
        raise JobError(f"received a leaf of type {name!r}; expected numbers")
    return found
