"""What a reduction is: how lanes become a flat buffer of numbers, how buffers are added up, and how a total is read.

A **message** is a flat buffer in the memory that a worker shares with its courier:

    │ head: numbers packed in the reduction's own way │ body: numbers added one by one │ footer │

The worker holds a `Reduction`. Its courier, another process, needs only the `WireFormat` of the message, three numbers
in shared memory: that is enough to add messages up. The head is empty except where a reduction needs one (bf16).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from meshmend.job.reduction.layout import Layout, Leaf, Rooms

Flat = npt.NDArray[Any]
Levels = npt.NDArray[np.int16]
"""The state of a reduction."""

BLOCK = 1 << 15
"""Numbers added at a time: they stay in the processor's cache while part after part is added to them."""


class NonFinite(StrEnum):
    """What a job does if a sum holds NaN or Inf; the values are those of `mm.Job(nonfinite=…)`."""

    ERROR = "error"
    SKIP = "skip"
    PASS = "pass"


@dataclass(frozen=True)
class WireFormat:
    """What a courier must know of a message to add it up."""

    kind: type[Reduction]
    size: int
    """How many numbers a message holds, footer included."""
    head: int = 0
    """How many of the first ones the reduction packs in its own way."""

    @property
    def nbytes(self) -> int:
        """Bytes of a message."""
        return self.size * self.kind.dtype.itemsize

    def combine(self, parts: Sequence[Flat], out: Flat, begin: int = 0) -> None:
        """Add up the same range of several messages, which begins at number `begin`; always in the order given."""
        head = min(max(self.head - begin, 0), len(out))
        if head:
            self.kind.combine_head([part[:head] for part in parts], out[:head])
        for start in range(head, len(out), BLOCK):
            here = slice(start, start + BLOCK)
            np.add(parts[0][here], parts[1][here] if len(parts) > 1 else 0, out=out[here])
            for part in parts[2:]:
                np.add(out[here], part[here], out=out[here])


def slices(begin: int, end: int, members: int) -> list[slice]:
    """A range of a message, divided evenly between members."""
    bounds = [begin + (end - begin) * position // members for position in range(members + 1)]
    return [slice(*bounds[position : position + 2]) for position in range(members)]


class Reduction(ABC):
    """How the lanes of a job are added up; a class per kind, an object per job.

    A new kind is a file with a subclass, and its line in `registry.py`.
    """

    number: ClassVar[int]
    """What the kind is called in shared memory: from 1 on, never used again for another kind."""
    reduction: ClassVar[str]
    wire: ClassVar[str] = "float32"
    """The two words of `mm.Job(reduction=…, wire=…)` that choose it."""
    dtype: ClassVar[np.dtype[Any]]
    """The type of the numbers in a message."""
    nonfinite: ClassVar[tuple[NonFinite, ...]]
    """What can be done where a sum holds NaN or Inf; the first one is the default."""
    checks_itself: ClassVar[bool] = False
    """Whether `finish` always raises `NotFinite` by itself, without `check`."""
    sliceable: ClassVar[bool] = False
    """Whether a worker can use a slice of a total without the rest, as sharded updates and embedding tables do."""
    packing: ClassVar[str] = ""
    """What the numbers of the head are, for devices that add them with kernels of their own; empty: there is none."""

    def __init__(self, layout: Layout, lanes: int) -> None:
        del lanes
        self.layout = layout
        self.size = layout.size
        """How many numbers of a message hold gradients: all but the footer."""
        self.head = 0

    @property
    def grid(self) -> Any | None:
        """The common grid that lanes are rounded to (`Exact`), if the kind has one: accumulators on devices use it."""
        return None

    @classmethod
    def packs(cls, leaf: Leaf) -> bool:
        """Whether the numbers of a leaf travel in the head, packed."""
        del leaf
        return False

    @classmethod  # noqa: B027 (most kinds need nothing)
    def warm(cls) -> None:
        """Load what adding needs, before a sum has to wait for it."""

    @classmethod
    def combine_head(cls, parts: Sequence[Flat], out: Flat) -> None:
        """Add up the same range of several heads."""
        raise NotImplementedError(f"{cls.__name__} packs no numbers")

    def wire_format(self, footer: int) -> WireFormat:
        """Return the format of a message whose footer holds this many numbers."""
        return WireFormat(type(self), self.size + footer, self.head)

    def places(self, buffer: Flat) -> Iterator[Flat]:
        """Return where the numbers of each leaf are in a message, in the type in which they travel."""
        return self.layout.parts(buffer)

    @abstractmethod
    def add(self, buffer: Flat, arrays: Iterable[Flat], *, first: bool) -> None:
        """Add one lane's gradients, leaf by leaf; the first lane overwrites the buffer."""

    def put(self, buffer: Flat) -> None:  # noqa: B027
        """Write the sum of the lanes so far to the buffer, unless `add` already did. More lanes may follow."""

    def check(self, total: Flat, step: int) -> None:  # noqa: B027
        """Raise `NotFinite` if a sum holds NaN or Inf; a kind whose `finish` always does so needs no check."""

    @abstractmethod
    def finish(self, total: Flat, step: int, rooms: Rooms = ()) -> list[Flat] | None:
        """The summed leaves, in new arrays or in these; None: repeat the round with what this one has shown."""

    def state(self) -> Levels:
        """What a newcomer or a checkpoint must know to continue with the same bits; part of the training state."""
        return np.zeros(0, np.int16)

    def restore(self, state: Levels) -> None:  # noqa: B027
        """Continue from such a state."""
