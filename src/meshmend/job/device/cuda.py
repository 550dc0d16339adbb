"""The memory of an NVIDIA device, by the driver's virtual-memory calls (`base/cuda.py`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.base.cuda import Device, Mapping
from meshmend.errors import DeviceError
from meshmend.job.device import kernels
from meshmend.job.device.base import Block, Memory, Place
from meshmend.job.device.digests import CudaDigests
from meshmend.job.device.packing_cuda import Pinned, packing_of, pointer
from meshmend.job.reduction.base import Reduction, WireFormat
from meshmend.job.reduction.packing import Packing

KERNELS = {np.dtype(np.float32): kernels.F32, np.dtype(np.int32): kernels.I32}
HEADS = {"bf16": (kernels.BF16, 2)}
"""For each packing of a head, the kernel that adds it, and how many numbers take the space of one."""


class View:
    """Numbers on the device, as PyTorch, JAX and CuPy take them without a copy."""

    def __init__(self, block: Mapping | None, pointer: int, count: int, dtype: np.dtype[Any]) -> None:
        self.block, self.pointer, self.dtype = block, pointer, dtype
        self.shape, self.nbytes = (count,), count * dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "version": 3,
            "strides": None,
            "stream": None,  # complete whenever it is handed out
        }

    def fill(self, source: Any) -> None:
        """Copy a device array here: one with `__cuda_array_interface__`, such as a PyTorch tensor.

        Waits first for everything that this process has started on the device; a JAX array must already be ready.
        """
        about = source.__cuda_array_interface__
        size = int(np.prod(about["shape"], dtype=np.int64)) * np.dtype(about["typestr"]).itemsize
        if size != self.nbytes or about.get("strides") is not None:
            raise ValueError(
                f"got {size} bytes for a place of {self.nbytes}: give a flat, contiguous array of that size"
            )
        assert self.block is not None, "a total is read only"
        self.block.device.stream.finish(everything=True)
        self.block.device.stream.copy(self.pointer, about["data"][0], size)
        self.block.device.stream.finish()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: slice) -> View:
        begin, end, step = which.indices(len(self))
        if step != 1:
            raise IndexError("a slice of a view of device memory cannot have a step")
        return View(self.block, self.pointer + begin * self.dtype.itemsize, max(end - begin, 0), self.dtype)


class CudaMemory(Memory):
    """One device of this process."""

    number = 2
    on_host = False

    def __init__(self, ordinal: int) -> None:
        self._device = Device(ordinal)
        self.name = self._device.name
        if not self._device.can_export:
            raise DeviceError(f"the memory of {self.name} cannot be exported to another process (MIG, some VMs)")
        self._module = self._device.load(kernels.module())
        self._stream = self._device.stream
        self.stream = self._stream.number
        self._pinned: list[Pinned] = []

    def serves(self, wire: WireFormat) -> bool:
        """What there are kernels for."""
        return wire.kind.dtype in KERNELS and (wire.head == 0 or wire.kind.packing in HEADS)

    def allocate(self, nbytes: int) -> Block:
        """Allocate a block."""
        return self._device.allocate(nbytes)

    def attach(self, file: int, nbytes: int) -> Block:
        """Map a block of another process, on this device or on one that it can access."""
        return self._device.attach(file, nbytes)

    def view(self, place: Place, count: int, wire: WireFormat) -> View:
        """Numbers of a message."""
        block, begin = place
        assert isinstance(block, Mapping)
        return View(block, block.pointer + begin, count, wire.kind.dtype)

    def add(self, wire: WireFormat, parts: Sequence[Place], out: Place, begin: int, count: int) -> None:
        """Start the kernel of the head, of which a number holds two, and that of the rest."""
        head = min(max(wire.head - begin, 0), count)
        size = wire.kind.dtype.itemsize
        if head:
            kernel, each = HEADS[wire.kind.packing]
            self._launch(kernel, each * head, parts, out, 0)
        self._launch(KERNELS[wire.kind.dtype], count - head, parts, out, head * size)

    def _launch(self, kernel: str, count: int, parts: Sequence[Place], out: Place, skipped: int) -> None:
        pointers = kernels.Parts.of([pointer(part) + skipped for part in parts])
        numbers = ctypes.c_uint32(len(parts)), ctypes.c_uint64(pointer(out) + skipped), ctypes.c_uint64(count)
        blocks = min(-(-count // kernels.THREADS), self._device.processors * kernels.BLOCKS_PER_PROCESSOR)
        function = self._device.function(self._module, kernel)
        self._stream.launch(function, blocks, kernels.THREADS, (pointers, *numbers))

    def copy(self, into: Place, source: Place, nbytes: int) -> None:
        """On the device, or between two that reach each other."""
        self._stream.copy(pointer(into), pointer(source), nbytes)

    def download(self, source: Place, out: npt.NDArray[Any]) -> None:
        """By DMA where the host's memory is registered."""
        self._stream.copy(out.ctypes.data, pointer(source), out.nbytes)

    def upload(self, data: npt.NDArray[Any], into: Place) -> None:
        """By DMA where the host's memory is registered."""
        self._stream.copy(pointer(into), data.ctypes.data, data.nbytes)

    def load(self, address: int, into: Place, nbytes: int) -> None:
        """On the device."""
        self._stream.copy(pointer(into), address, nbytes)

    def store(self, source: Place, address: int, nbytes: int) -> None:
        """On the device."""
        self._stream.copy(address, pointer(source), nbytes)

    def packing(self, reduction: Reduction) -> Packing | None:
        """By kernels."""
        return packing_of(self._device, self._module, reduction)

    def digests(self) -> CudaDigests:
        """By a kernel."""
        return CudaDigests(self._device, self._module)

    def pinned(self, size: int) -> npt.NDArray[np.float32]:
        """Memory of the host that is registered with the device."""
        self._pinned.append(Pinned(self._device, size, np.float32))
        return self._pinned[-1].array

    def follow(self, stream: int) -> None:
        """An event in the other stream, which this one waits for."""
        self._stream.follow(stream)

    def lead(self, stream: int | None) -> None:
        """An event of this stream, which the other one waits for."""
        self._stream.finish() if stream is None else self._stream.lead(stream)

    def spares(self, nbytes: int) -> bool:
        """Try twice: frameworks reserve memory in large pieces."""
        return self._device.memory()[0] > 2 * nbytes

    def zero(self, place: Place, nbytes: int) -> None:
        """On the device."""
        self._stream.zero(pointer(place), nbytes)

    def finish(self, *, everything: bool = False) -> None:
        """Wait for this module's own stream, or for all of the process's."""
        self._stream.finish(everything=everything)
