"""A worker's state as bytes, on its way to a spare or a newcomer.

│ length of the header │ header: JSON, what the arrays are and some facts about them │ array │ array │ …

If a worker lends its arrays to another one in device memory, the header says where in that memory each one is
(`Lent`), and these arrays do not follow it.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshmend.base.schema import Count, checked, loads
from meshmend.errors import FormatError, JobError
from meshmend.job.state.tree import Leaves, OnDevice


class LeafEntry(NamedTuple):
    """One array."""

    name: str
    shape: list[Count]
    dtype: str


@dataclass(frozen=True)
class Lent:
    """Arrays in device memory that one worker gives to another."""

    rank: int
    birth: int
    """Which worker of that rank lends them."""
    number: Count
    """Which of the blocks that it has lent this is."""
    nbytes: Count
    digest: int
    """The digest of the whole state on arrival."""
    places: list[int]
    """The byte at which each array begins; -1 for those that follow the header."""


@dataclass(frozen=True)
class Header:
    """All arrays, and the facts about them."""

    leaves: list[LeafEntry]
    about: dict[str, Any]
    lent: Lent | None = None


Borrow = Callable[[int, tuple[int, ...], np.dtype[Any]], OnDevice]
"""Makes an array of what begins at some byte of a block, given its shape and type."""


def encode(leaves: Leaves, lent: Lent | None = None, **about: Any) -> list[Any]:
    """A state and some facts about it, as buffers to be written one after another.

    The arrays are not copied; an array on a device becomes a piece that is fetched when it is written.
    """
    found = [(name, value if isinstance(value, OnDevice) else np.asarray(value)) for name, value in leaves]
    told = {"about": about, "leaves": [[n, list(a.shape), a.dtype.name] for n, a in found]}
    head = json.dumps(told if lent is None else {**told, "lent": asdict(lent)}).encode()
    places = [-1] * len(found) if lent is None else lent.places
    pieces = [_piece(array) for (_, array), place in zip(found, places, strict=True) if place < 0]
    return [struct.pack("<q", len(head)), head, *pieces]


def lent_in(data: npt.NDArray[np.uint8]) -> Lent | None:
    """The part of a state that is in the device memory of the worker that it comes from."""
    return _opened(data)[0].lent


def _piece(array: npt.NDArray[Any] | OnDevice) -> Any:
    if isinstance(array, OnDevice):
        return OnDevice((array.nbytes,), np.dtype(np.uint8), lambda: _piece(np.asarray(array)))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def decode(
    data: npt.NDArray[np.uint8], template: Leaves | None, borrow: Borrow | None = None
) -> tuple[Leaves, dict[str, Any]]:
    """The arrays and the facts. With a template, other names, shapes or types than its own are refused by name."""
    header, body = _opened(data)
    places = [-1] * len(header.leaves) if header.lent is None else header.lent.places
    if len(places) != len(header.leaves) or (borrow is None and header.lent is not None):
        raise _damaged(f"it has {len(header.leaves)} arrays, and {len(places)} of them lie in device memory")
    types = [dtype_of(one.dtype) for one in header.leaves] if template is None else _checked_types(header, template)
    sizes = [dtype.itemsize * math.prod(one.shape) for one, dtype in zip(header.leaves, types, strict=True)]
    here = sum(size for size, place in zip(sizes, places, strict=True) if place < 0)
    if here != len(body):
        raise _damaged(f"its arrays have {here} bytes, and {len(body)} arrived")
    begin = 0
    found: list[tuple[str, Any]] = []
    for (name, shape, _), dtype, size, place in zip(header.leaves, types, sizes, places, strict=True):
        if place >= 0:
            assert borrow is not None
            found.append((name, borrow(place, tuple(shape), dtype)))
            continue
        found.append((name, body[begin : begin + size].copy().view(dtype).reshape(shape)))
        begin += size
    return found, header.about


def _opened(data: npt.NDArray[np.uint8]) -> tuple[Header, npt.NDArray[np.uint8]]:
    """The header of a state that was received, and the bytes after it."""
    length = struct.unpack("<q", data[:8].tobytes())[0] if len(data) >= 8 else -1
    if not 0 <= length <= len(data) - 8:
        raise _damaged(f"its header has {length} bytes, and {len(data)} arrived")
    try:
        return checked(Header, loads(data[8 : 8 + length].tobytes())), data[8 + length :]
    except FormatError as error:
        raise _damaged(str(error)) from None


def _damaged(why: str) -> FormatError:
    return FormatError(f"the state that another worker sent arrived damaged ({why}): resume from a checkpoint")


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
    # bf16 and smaller floats have no kind in numpy.
    if found is None or not (found.kind in "biufc" or name.startswith(("bfloat", "float"))):
        raise JobError(f"received a leaf of type {name!r}; expected numbers")
    return found
