"""Messages made of a framework's arrays, and sums brought back to arrays, without the framework.

A framework would concatenate hundreds of arrays, copy the message to where the others see it, copy the total back and
cut it into arrays: five passes over memory, and a launch for each. Here a lane's arrays, the *leaves*, are read where
they are and written to the message in one pass (`pack`), and the sums of all parts are written to other arrays in one
more (`unpack`). Exact sums are rounded to their grid on the way, and brought back from it.

The bits are those of the reduction on the host. This file has what a framework's accumulator sees of it; it is done in
`job/device/`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.job.reduction.base import Reduction, slices
from meshmend.job.reduction.exact import Exact, ExactResult

Addresses = Sequence[int]
"""Where each leaf of a layout is: float32, contiguous, in memory that the device reaches."""
Place = Any
"""Where a message begins in a block of device memory: `device/base.py`."""


class Packing(ABC):
    """Packs and unpacks messages of one layout, on one device; belongs to a job's reduction for one of its sums."""

    def __init__(self, reduction: Reduction) -> None:
        self.layout = reduction.layout
        self.sizes = np.array([leaf.size for leaf in self.layout.leaves], np.int64)
        self.offsets = self.layout.bounds[:-1]
        self.size = reduction.size
        """How many numbers a message has before its footer."""

    @abstractmethod
    def pack(self, leaves: Addresses, part: Place, *, first: bool) -> None:
        """Start to write a lane's leaves to a part; or to add them to it, if they are not the `first`."""

    @abstractmethod
    def unpack(
        self, parts: Sequence[Place], leaves: Addresses, *, sliced: int, check: bool, soon: Sequence[int] = ()
    ) -> ExactResult | None:
        """Start to write the sums of all parts to leaves; what stands against them, if anything does.

        It waits only until that is known, and until the leaves of `soon` are there, which the host reads. The device
        may still be writing the others: `DeviceTotal.lead` has a stream wait for them.

        `sliced`: these are not parts to be added up, but totals, of which each holds its own slice of so many numbers
        (those of the largest sum of a step); 0 for parts. `check`: NaN and Inf stand against a sum. If something does,
        the leaves may hold anything.
        """

    def close(self) -> None:  # noqa: B027 (the host has nothing to give back)
        """Give back what it holds on the device."""


class DevicePart(ABC):
    """Where a worker's part of a round goes, in device memory."""

    stream: int | None
    """The stream on which leaves are packed; None if they have to be complete before that."""

    @abstractmethod
    def packing(self, reduction: Reduction) -> Packing | None:
        """What packs messages of this reduction; None if the framework has to make the message."""

    @abstractmethod
    def pack(self, packing: Packing, leaves: Addresses, *, first: bool) -> None:
        """Start to write a lane to the part, or to add it."""

    @abstractmethod
    def fill(self, message: Any) -> None:
        """Write a whole message that a framework has made and completed."""

    @abstractmethod
    def pinned(self, size: int) -> npt.NDArray[np.float32]:
        """Room on the host, within the device's reach, for leaves that are there."""

    @abstractmethod
    def follow(self, stream: int) -> None:
        """Pack what comes next only when what this stream has been given so far is complete."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until what was packed is there."""


class DeviceTotal(ABC):
    """The total of a round that is done, in device memory."""

    @abstractmethod
    def unpack(
        self, packing: Packing, leaves: Addresses, *, check: bool, soon: Sequence[int] = ()
    ) -> ExactResult | None:
        """Start to write it to leaves; see `Packing.unpack`."""

    @abstractmethod
    def lead(self, stream: int | None) -> None:
        """Have a stream of the device wait until all leaves are written; without one, the host waits."""

    @abstractmethod
    def flat(self) -> Any:
        """It in one piece, as frameworks take it without a copy; its memory will hold other totals."""


def runs_of(leaves: int, soon: Sequence[int]) -> tuple[list[range], list[range]]:
    """All leaves as runs of neighbours: those of `soon`, and the others."""
    found: tuple[list[range], list[range]] = [], []
    begin = 0
    for leaf in range(1, leaves + 1):
        if leaf == leaves or (leaf in soon) != (begin in soon):
            found[begin not in soon].append(range(begin, leaf))
            begin = leaf
    return found


def slices_of(parts: Sequence[Place], size: int) -> list[tuple[Place, slice]]:
    """Which slice of a message each member has added, and where its total begins."""
    return list(zip(parts, slices(0, size, len(parts)), strict=True))


def grid_of(reduction: Reduction) -> Exact | None:
    """The grid of exact sums."""
    grid = reduction.grid
    assert grid is None or isinstance(grid, Exact), "there is one kind of grid"
    return grid
