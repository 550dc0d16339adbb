"""The host's memory in the place of a device's: the same blocks, descriptors and mappings, added up by numpy."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import DeviceError
from meshmend.job.device.base import Block, Memory, Place
from meshmend.job.device.packing_plain import PlainPacking
from meshmend.job.reduction.base import Reduction, WireFormat
from meshmend.job.reduction.packing import Packing
from meshmend.job.state.digest import sums_of_each

NAME = "meshmend-device"
"""What a block is called in /proc/PID/maps."""


class HostBlock:
    """A file without a name, mapped."""

    def __init__(self, file: int, nbytes: int) -> None:
        self._file, self.nbytes = file, nbytes
        self._map = mmap.mmap(file, nbytes)

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """All of it. A view of it keeps it mapped."""
        return np.frombuffer(self._map, np.uint8)

    def export(self) -> int:
        """Another descriptor of the same file."""
        return os.dup(self._file)

    def close(self) -> None:
        """Release it, as soon as no view of it is left."""
        os.close(self._file)
        del self._map


class PlainDigests:
    """Takes the sums of leaves in the host's memory."""

    def begin(self, leaves: Sequence[tuple[int, int]]) -> Callable[[], npt.NDArray[np.uint32]]:
        """When they are fetched."""
        return lambda: sums_of_each([_at(address, nbytes) for address, nbytes in leaves])


class StandIn(Memory):
    """Pretends that the host is a device."""

    number = 1
    name = "the host's memory in place of a device's"
    on_host = True

    def serves(self, wire: WireFormat) -> bool:
        """Whatever couriers can add up."""
        del wire
        return True

    def allocate(self, nbytes: int) -> Block:
        """A new file."""
        file = os.memfd_create(NAME, os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(file, 0, max(nbytes, 1))
        except OSError as error:
            os.close(file)
            raise DeviceError(f"{nbytes / 1e6:.0f} MB were asked for ({error.strerror})") from None
        return HostBlock(file, max(nbytes, 1))

    def attach(self, file: int, nbytes: int) -> Block:
        """The same file."""
        if os.fstat(file).st_size < nbytes:
            raise DeviceError(f"{os.fstat(file).st_size} bytes were given instead of {nbytes}")
        return HostBlock(os.dup(file), nbytes)

    def view(self, place: Place, count: int, wire: WireFormat) -> Any:
        """An array of numpy."""
        return _bytes(place, count * wire.kind.dtype.itemsize).view(wire.kind.dtype)

    def add(self, wire: WireFormat, parts: Sequence[Place], out: Place, begin: int, count: int) -> None:
        """As couriers do it."""
        with np.errstate(all="ignore"):  # a device does not warn about Inf and NaN either
            wire.combine([self.view(part, count, wire) for part in parts], self.view(out, count, wire), begin)

    def copy(self, into: Place, source: Place, nbytes: int) -> None:
        """At once."""
        _bytes(into, nbytes)[:] = _bytes(source, nbytes)

    def download(self, source: Place, out: npt.NDArray[Any]) -> None:
        """At once."""
        out.view(np.uint8)[:] = _bytes(source, out.nbytes)

    def upload(self, data: npt.NDArray[Any], into: Place) -> None:
        """At once."""
        _bytes(into, data.nbytes)[:] = data.view(np.uint8)

    def load(self, address: int, into: Place, nbytes: int) -> None:
        """At once."""
        ctypes.memmove(_bytes(into, nbytes).ctypes.data, address, nbytes)

    def store(self, source: Place, address: int, nbytes: int) -> None:
        """At once."""
        ctypes.memmove(address, _bytes(source, nbytes).ctypes.data, nbytes)

    def packing(self, reduction: Reduction) -> Packing | None:
        """By numpy; like a device, not for reductions that pack numbers in their own way."""
        return None if reduction.head else PlainPacking(self, reduction)

    def digests(self) -> PlainDigests:
        """By numpy."""
        return PlainDigests()

    def pinned(self, size: int) -> npt.NDArray[np.float32]:
        """An array."""
        return np.zeros(size, np.float32)

    def spares(self, nbytes: int) -> bool:
        """`allocate` says so."""
        return nbytes >= 0

    def zero(self, place: Place, nbytes: int) -> None:
        """At once."""
        _bytes(place, nbytes)[:] = 0

    def finish(self, *, everything: bool = False) -> None:
        """Everything is complete at once."""


def _at(address: int, nbytes: int) -> npt.NDArray[np.uint8]:
    if not nbytes:
        return np.empty(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


def _bytes(place: Place, nbytes: int) -> npt.NDArray[np.uint8]:
    block, begin = place
    assert isinstance(block, HostBlock)
    return block.bytes[begin : begin + nbytes]
