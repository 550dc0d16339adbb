"""A worker's state as bytes, on its way to a spare or a newcomer.

│ length of the header │ header: JSON, what the arrays are and some facts about them │ array │ array │ …
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError
from meshmend.job.state.tree import Leaves

Described = list[tuple[str, list[int], str]]
"""The name, shape and type of each array."""


def encode(leaves: Leaves, **about: Any) -> list[Any]:
    """A state and some facts about it, as buffers to be written one after another; the arrays are not copied."""
    found = [(name, np.ascontiguousarray(value).reshape(np.shape(value))) for name, value in leaves]
    head = json.dumps({"about": about, "leaves": [[n, list(a.shape), a.dtype.name] for n, a in found]}).encode()
    return [struct.pack("<q", len(head)), head, *(array.reshape(-1).view(np.uint8) for _, array in found)]


def decode(data: npt.NDArray[np.uint8], template: Leaves | None) -> tuple[Leaves, dict[str, Any]]:
    """The arrays and the facts. With a template, other names, shapes or types than its own are refused by name."""
    (length,) = struct.unpack("<q", data[:8].tobytes())
    header = json.loads(data[8 : 8 + length].tobytes())
    described: Described = header["leaves"]
    types = [dtype_of(kind) for _, _, kind in described] if template is None else _checked_types(described, template)
    body, begin, found = data[8 + length :], 0, []
    for (name, shape, _), dtype in zip(described, types, strict=True):
        end = begin + dtype.itemsize * math.prod(shape)
        found.append((name, body[begin:end].copy().view(dtype).reshape(shape)))
        begin = end
    return found, header["about"]


def _checked_types(described: Described, template: Leaves) -> list[np.dtype[Any]]:
    if [name for name, _, _ in described] != [name for name, _ in template]:
        raise JobError(
            f"received a state with the leaves {[name for name, _, _ in described]}, but this worker's has "
            f"{[name for name, _ in template]}; run the same script on all workers"
        )
    for (name, shape, dtype), (_, mine) in zip(described, template, strict=True):
        if list(mine.shape) != shape or mine.dtype.name != dtype:
            raise JobError(
                f"leaf {name!r} of the received state has shape {shape} and type {dtype}, but here it has "
                f"{list(mine.shape)} and {mine.dtype.name}; run the same script on all workers"
            )
    return [mine.dtype for _, mine in template]


def dtype_of(name: str) -> np.dtype[Any]:
    """The type that a name in a file or a message means; only plain numbers are allowed."""
    found = np.dtype(name)
    if found.kind not in "biufc":
        raise JobError(f"received a leaf of type {name!r}; expected numbers")
    return found
