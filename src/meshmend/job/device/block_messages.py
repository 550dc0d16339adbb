"""A part and a total in device memory, as the accumulators of frameworks see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from meshmend.job.device.sums import DeviceSums
from meshmend.job.reduction.base import Reduction
from meshmend.job.reduction.exact import ExactResult
from meshmend.job.reduction.packing import Addresses, DevicePart, DeviceTotal, Packing
from meshmend.job.shm.sliced import Overtaken

LATE = "the others continued without this worker, and their memory already holds later sums"
"""Why a worker ends that is `Overtaken`."""


class PartInBlock(DevicePart):
    """In this worker's block."""

    def __init__(self, sums: DeviceSums, round: int, size: int) -> None:
        self._sums, self._round, self._size = sums, round, size
        self.stream = sums.memory.stream

    def __len__(self) -> int:
        return self._size

    def packing(self, reduction: Reduction) -> Packing | None:
        """One for each sum of a step."""
        return self._sums.own.packing(reduction)

    def pack(self, packing: Packing, leaves: Addresses, *, first: bool) -> None:
        """Announce it first: others may still read what was in that place."""
        packing.pack(leaves, self._sums.own.bring(self._round), first=first)

    def fill(self, message: Any) -> None:
        """Copy it, and wait for that."""
        view = self._sums.own.part(self._round)[: self._size]
        if isinstance(view, np.ndarray):
            np.copyto(view, np.asarray(message))
        else:
            view.fill(message)

    def pinned(self, size: int) -> npt.NDArray[np.float32]:
        """See `Memory.pinned`."""
        return self._sums.memory.pinned(size)

    def follow(self, stream: int) -> None:
        """An event of that stream."""
        self._sums.memory.follow(stream)

    def finish(self) -> None:
        """Wait for this stream."""
        self._sums.memory.finish()


class TotalInBlocks(DeviceTotal):
    """In the blocks of the members."""

    def __init__(
        self, sums: DeviceSums, round: int, end: Callable[[str], NoReturn], meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        """`meanwhile`: what the host does before it waits."""
        self._sums, self._round, self._end, self._meanwhile = sums, round, end, meanwhile

    def unpack(
        self, packing: Packing, leaves: Addresses, *, check: bool, soon: Sequence[int] = ()
    ) -> ExactResult | None:
        """From all of them at once."""
        try:
            return self._sums.unpack(self._round, packing, leaves, check=check, soon=soon)
        except Overtaken:
            self._late()

    def lead(self, stream: int | None) -> None:
        """See `Memory.lead`."""
        if stream is None:
            self._meanwhile()
        self._sums.memory.lead(stream)

    def flat(self) -> Any:
        """In this worker's own block."""
        try:
            return self._sums.take(self._round)
        except Overtaken:
            self._late()

    def _late(self) -> NoReturn:
        self._end(LATE)
