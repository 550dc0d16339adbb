"""Host memory that a device accesses directly (DMA), because it is registered with the driver.

Two kinds have the same interface: `CudaHostMemory`, and `PlainMemory`, which registers nothing and copies with numpy,
so that everything but the driver's calls is tested on machines without a device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


PIECE = 1 << 25
"""Bytes that a device copies before it reports progress."""


class HostMemory(ABC):
    """Registers arrays of the host, fills them from a device, and fills memory of the device from them."""

    @abstractmethod
    def register(self, array: Array) -> None:
        """Make an array accessible to the device; `DeviceError` if that is impossible."""

    @abstractmethod
    def unregister(self, array: Array) -> None:
        """The reverse; the array must still be mapped."""

    @abstractmethod
    def pull(self, source: Any, out: Array) -> Iterator[int]:
        """Begin to copy a complete array of the device; return an iterator that waits for one piece after another.

        It yields how many numbers have arrived so far.
        """

    @abstractmethod
    def push(self, source: Array, begin: int) -> None:
        """Begin to copy numbers to their place on the device, starting at its number `begin`."""

    @abstractmethod
    def make_room(self, size: int, dtype: np.dtype[Any]) -> None:
        """Allocate such a place for this many numbers; `DeviceError` if there is no room."""

    @abstractmethod
    def pushed(self) -> Any:
        """Return that place as frameworks take it, when everything has arrived."""

    @abstractmethod
    def close(self) -> None:
        """Give it back."""


class PlainMemory(HostMemory):
    """Pretends that the host is a device."""

    def register(self, array: Array) -> None:
        """There is nothing to do."""

    def unregister(self, array: Array) -> None:
        """There is nothing to do."""

    def pull(self, source: Any, out: Array) -> Iterator[int]:
        """Copy one piece after another, each when the caller waits for it."""
        found = np.asarray(source)
        for here in _pieces(out):
            out[here] = found[here]
            yield here.stop

    def push(self, source: Array, begin: int) -> None:
        """Copy immediately."""
        self._place[begin : begin + len(source)] = source

    def make_room(self, size: int, dtype: np.dtype[Any]) -> None:
        """An array."""
        self._place = np.empty(size, dtype)

    def pushed(self) -> Any:
        """A copy: frameworks may keep what they get."""
        return self._place.copy()

    def close(self) -> None:
        """There is nothing to do."""


class CudaHostMemory(HostMemory):
    """For one NVIDIA device."""

    def __init__(self, ordinal: int) -> None:
        from meshmend.base.cuda import Device  # loads the driver

        # Copies down and up run at the same time, and neither waits for the other.
        self._down, self._up = Device(ordinal), Device(ordinal)
        self._room: tuple[int, int, np.dtype[Any]] = (0, 0, np.dtype(np.float32))
        """Where the place is, how many numbers it has, and their type."""

    def register(self, array: Array) -> None:
        """Once for all devices of this process."""
        self._down.register(array.ctypes.data, array.nbytes)

    def unregister(self, array: Array) -> None:
        """Before it is unmapped, and when nothing is on its way."""
        self._down.stream.finish()
        self._up.stream.finish()
        self._down.unregister(array.ctypes.data)

    def pull(self, source: Any, out: Array) -> Iterator[int]:
        """Copy an array that has `__cuda_array_interface__`, such as a JAX array or a PyTorch tensor."""
        pointer, marks = source.__cuda_array_interface__["data"][0], []
        for here in _pieces(out):
            part = out[here]
            self._down.stream.copy(part.ctypes.data, pointer + here.start * out.itemsize, part.nbytes)
            marks.append((here.stop, self._down.stream.mark()))
        return self._waits(source, marks)

    def _waits(self, source: Any, marks: list[tuple[int, Any]]) -> Iterator[int]:
        for numbers, mark in marks:
            self._down.stream.wait(mark)
            yield numbers
        del source  # it had to stay

    def push(self, source: Array, begin: int) -> None:
        """By DMA."""
        pointer, _, dtype = self._room
        self._up.stream.copy(pointer + begin * dtype.itemsize, source.ctypes.data, source.nbytes)

    def make_room(self, size: int, dtype: np.dtype[Any]) -> None:
        """Ordinary memory of the device."""
        self.close()
        self._room = self._up.take(size * dtype.itemsize), size, dtype

    def pushed(self) -> Any:
        """A view that frameworks copy."""
        from meshmend.job.device.cuda import View

        self._up.stream.finish()
        pointer, size, dtype = self._room
        return View(None, pointer, size, dtype)

    def close(self) -> None:
        """Give the place back."""
        pointer, _, dtype = self._room
        if pointer:
            self._up.give_back(pointer)
        self._room = 0, 0, dtype


def _pieces(array: Array) -> list[slice]:
    step = PIECE // array.itemsize
    return [slice(begin, min(begin + step, len(array))) for begin in range(0, len(array), step)]
