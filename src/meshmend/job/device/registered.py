"""Buffers in host memory that a device reads and writes directly, because they are registered with it.

If members do not sum in device memory (several hosts, memory that cannot be exported), parts and totals go through
the buffers that a worker shares with its courier. Copies to and from unregistered memory go through the driver's own
staging pages, at a quarter of the speed of the wire or less.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meshmend.errors import DeviceError
from meshmend.job.device import host_memory
from meshmend.job.device.host_memory import Array, HostMemory


class RegisteredPart:
    """A worker's part in a buffer that is registered."""

    def __init__(self, array: Array, fill: Callable[[Any, Array], None]) -> None:
        self.array, self._fill = array, fill

    def __len__(self) -> int:
        return len(self.array)

    def fill(self, source: Any) -> None:
        """Copy a message of the device here, or begin to."""
        self._fill(source, self.array)


class Registration:
    """The buffers of a worker, registered as long as they are its own, and what is on its way to and from them."""

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self._held: Array | None = None
        self._generation = 0
        self._copies: Iterator[int] | None = None
        self._lock = threading.Lock()
        """For what follows: two threads take pieces of totals."""
        self._room: tuple[int, np.dtype[Any]] | None = None
        self._attempt = self._used = -1
        self._taken = 0
        """How many numbers of the total of that attempt are on their way to the device."""
        self._began = 0.0
        self.down = self.whole = 0.0
        """Seconds from the beginning of the last copy down to its end, and until its total was on the device."""
        self._full = False
        """Whether the device has no room for a total."""

    def hold(self, whole: Array, generation: int = 0) -> None:
        """Have these buffers registered, and no others; nothing happens where they are."""
        if self._held is not None and self._held.ctypes.data == whole.ctypes.data:
            return
        with self._lock:
            self._release()
            self._memory.register(whole)
            self._held, self._generation = whole, generation  # mapped as long as it is registered

    def part(self, array: Array) -> RegisteredPart:
        """Return where a part goes in these buffers."""
        return RegisteredPart(array, self._begin)

    def _begin(self, source: Any, out: Array) -> None:
        self._began = time.perf_counter()
        self._copies = self._memory.pull(source, out)
        if out.nbytes < 2 * host_memory.PIECE:
            for _ in self.copied():
                pass

    @property
    def copying(self) -> bool:
        """Whether a part is on its way."""
        return self._copies is not None

    def copied(self) -> Iterator[int]:
        """Wait until the part has arrived; yield how many numbers of it have."""
        copies, self._copies = self._copies, None
        if copies is not None:
            yield from copies
            self.down = time.perf_counter() - self._began

    def take(self, attempt: int, row: int, size: int, gathered: int, generation: int = 0) -> None:
        """Begin to copy up what is ready of the total in a row of these buffers, whose first `size` numbers count.

        What another attempt has copied does not count.
        """
        with self._lock:
            if self._held is None or generation != self._generation or attempt == self._used:
                return
            total = self._held[row, :size]
            if self._has_room(total):
                self._push(attempt, total, min(gathered, size))

    def total(self, attempt: int, total: Array) -> Any | None:
        """Return the total of this attempt on the device; None if there is no room there."""
        with self._lock:
            if not self._has_room(total):
                return None
            self._push(attempt, total, len(total))
            self._used = attempt
            found = self._memory.pushed()
            self.whole = time.perf_counter() - self._began
            return found

    def _push(self, attempt: int, total: Array, end: int) -> None:
        if attempt != self._attempt:
            self._attempt, self._taken = attempt, 0
        if end > self._taken:
            self._memory.push(total[self._taken : end], self._taken)
            self._taken = end

    def _has_room(self, total: Array) -> bool:
        wanted = len(total), total.dtype
        if self._room != wanted and not self._full:
            try:
                self._memory.make_room(*wanted)
                self._room, self._attempt = wanted, -1
            except DeviceError:
                self._full = True
        return not self._full

    def _release(self) -> None:
        for _ in self.copied():
            pass
        if self._held is not None:
            self._memory.unregister(self._held)
            self._held = None

    def close(self) -> None:
        """Give everything back."""
        with self._lock:
            self._release()
            self._memory.close()
            self._room = None
