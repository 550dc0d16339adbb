"""The lanes of one worker, packed into device memory as they come: what the accumulators of all libraries share there.

A library says where its arrays are. They must stay until the device has packed them, so the arrays of the last lane
are kept, and the host is never more than one lane ahead of the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshmend.job.reduction.base import Reduction
from meshmend.job.reduction.layout import Layout
from meshmend.job.reduction.packing import DevicePart, DeviceTotal, Packing


class PackedLanes:
    """Where leaves that the host holds lie, and what the device still reads."""

    def __init__(self, reduction: Reduction, layout: Layout, on_host: Sequence[int]) -> None:
        """`on_host`: the leaves that are not on the device."""
        self._reduction, self._layout, self._on_host = reduction, layout, on_host
        self._rooms: dict[int, Any] = {}
        """For each leaf of the host, numbers that the device reads, and others that it writes."""
        self._packing: Packing | None = None
        self._read: Any = None
        self.used = False
        """Whether the part that this worker brings was packed."""

    def takes(self, part: Any) -> bool:
        """Whether lanes are packed into this part."""
        self.used = isinstance(part, DevicePart) and part.packing(self._reduction) is not None
        if self.used:
            self._packing = part.packing(self._reduction)
            self._make_rooms(part)
        return self.used

    def pack(self, part: DevicePart, arrays: Any, addresses: dict[int, int], *, first: bool) -> None:
        """Have a lane packed: the addresses of the leaves on the device, and the arrays that are there."""
        assert self._packing is not None, "it takes lanes"
        part.pack(self._packing, self._all(addresses, 0), first=first)
        self._read = arrays

    def put(self, leaf: int, numbers: Any) -> None:
        """A leaf of the host, of the next lane to be packed."""
        self._rooms[leaf][0][:] = np.asarray(numbers).reshape(-1)

    def begin(self, part: DevicePart) -> None:
        """Wait for the last lane, before the device is told to wait for the next one."""
        if self._read is not None:
            part.finish()
            self._read = None

    def unpack(
        self, total: DeviceTotal, addresses: dict[int, int], *, check: bool, stream: int | None
    ) -> tuple[int, ...] | None:
        """Write a total to leaves at these addresses; which leaves stand against it, None: the round must be repeated.

        Empty if all is well. `stream`: of the device, and what uses the leaves next; it waits until they are written.
        None: the host waits. It waits in any case for leaves that it holds itself (`sum_of`).
        """
        assert self._packing is not None, "it has packed a part"
        against = total.unpack(self._packing, self._all(addresses, 1), check=check, soon=self._on_host)
        self._read = None  # packed long ago: hundreds of arrays are released while the device is busy
        total.lead(stream)  # even if something stands against it: the leaves' memory may be used again
        return () if against is None else against.bad or None

    def sum_of(self, leaf: int) -> Any:
        """The sum of a leaf of the host, which stays as it is."""
        return self._rooms[leaf][1].reshape(self._layout.leaves[leaf].shape).copy()

    def _make_rooms(self, part: DevicePart) -> None:
        if self._on_host and not self._rooms:
            sizes = [self._layout.leaves[leaf].size for leaf in self._on_host]
            ends = np.cumsum(sizes).tolist()
            rooms = part.pinned(2 * ends[-1]).reshape(2, -1)
            for leaf, size, end in zip(self._on_host, sizes, ends, strict=True):
                self._rooms[leaf] = rooms[:, end - size : end]

    def _all(self, addresses: dict[int, int], row: int) -> list[int]:
        """The addresses of all leaves, in order."""
        return [
            addresses[leaf] if leaf in addresses else int(self._rooms[leaf][row].ctypes.data)
            for leaf in range(len(self._layout.leaves))
        ]
