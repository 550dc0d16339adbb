"""What device memory is to a sum: blocks that their maker exports as a file descriptor and others map.

Two kinds have the same face: `CudaMemory`, and `StandIn`, which maps the host's memory, so that all of it but the
driver's calls is tested where no device is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from meshmend.job.reduction.base import Reduction, WireFormat
from meshmend.job.reduction.packing import Packing
from meshmend.job.state.digest import Digester


class Block(Protocol):
    """A range of device memory, mapped here."""

    @property
    def nbytes(self) -> int:
        """Its size."""

    def export(self) -> int:
        """A file descriptor by which another process maps it; the caller closes it."""

    def close(self) -> None:
        """Unmap it. The memory lives as long as any process has it mapped."""


Place = tuple[Block, int]
"""A block, and the byte in it where something begins."""


class Memory(ABC):
    """One device's memory. What is started is complete after `finish`; any thread may call anything."""

    number: ClassVar[int]
    """What the kind is called in shared memory: from 1 on. Members sum together where all have the same."""
    name: str
    """What it is called in a sentence."""
    on_host: ClassVar[bool]
    """Whether `view` is an array of numpy: then every framework can use it."""

    stream: int | None = None
    """Of an NVIDIA device, the stream that everything here is started on; None where all is complete at once."""

    @abstractmethod
    def serves(self, wire: WireFormat) -> bool:
        """Whether it can add up such messages."""

    @abstractmethod
    def allocate(self, nbytes: int) -> Block:
        """Return a block of at least this many bytes; `DeviceError` if there is no room."""

    @abstractmethod
    def attach(self, file: int, nbytes: int) -> Block:
        """The block of another process, by its descriptor, which stays open; `DeviceError` if it cannot be mapped."""

    @abstractmethod
    def view(self, place: Place, count: int, wire: WireFormat) -> Any:
        """Return numbers of a message as an array that frameworks take without a copy; slices of it are views too."""

    @abstractmethod
    def add(self, wire: WireFormat, parts: Sequence[Place], out: Place, begin: int, count: int) -> None:
        """Add up the same range of several messages, in the order given; it begins at their number `begin`."""

    @abstractmethod
    def copy(self, into: Place, source: Place, nbytes: int) -> None:
        """Copy from block to block."""

    @abstractmethod
    def download(self, source: Place, out: npt.NDArray[Any]) -> None:
        """Copy to the host."""

    @abstractmethod
    def upload(self, data: npt.NDArray[Any], into: Place) -> None:
        """Copy from the host."""

    @abstractmethod
    def load(self, address: int, into: Place, nbytes: int) -> None:
        """Copy from an address of this device, such as that of a framework's array."""

    @abstractmethod
    def store(self, source: Place, address: int, nbytes: int) -> None:
        """Copy to an address of this device."""

    @abstractmethod
    def packing(self, reduction: Reduction) -> Packing | None:
        """What packs messages of this reduction from leaves; None where frameworks have to do that."""

    @abstractmethod
    def digests(self) -> Digester:
        """What takes digests of leaves that are there."""

    @abstractmethod
    def pinned(self, size: int) -> npt.NDArray[np.float32]:
        """An array of the host that leaves may lie in, for small ones; it lives as long as this memory."""

    def follow(self, stream: int) -> None:  # noqa: B027 (the host does everything at once)
        """Start nothing here before what another stream has been given so far is complete."""

    def lead(self, stream: int | None) -> None:
        """The reverse: another stream waits for what was started here so far; without one, the host does."""
        del stream
        self.finish()

    @abstractmethod
    def spares(self, nbytes: int) -> bool:
        """Whether so much can be taken for a while without a step finding no memory."""

    @abstractmethod
    def zero(self, place: Place, nbytes: int) -> None:
        """Fill with zeros."""

    @abstractmethod
    def finish(self, *, everything: bool = False) -> None:
        """Wait until what was started here is complete; or everything that this process has started on the device."""
