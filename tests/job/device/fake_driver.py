"""CUDA's driver as `base/cuda.py` calls it, with the host's memory: arguments and results as in `cuda.bindings` 13."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np

from meshmend.job.device import kernels
from tests.job.device.fake_kernels import ARGUMENTS, KERNELS, Arguments

GRAIN = 1 << 16
STREAM = 0x5EA


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2


OK = CUresult.CUDA_SUCCESS
CUdeviceptr = int
CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED=1)
CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE=1)
CUmemAllocationHandleType = SimpleNamespace(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR=1)
CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_MINIMUM=0)
CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE=3)
CUdevice_attribute = SimpleNamespace(
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=1,
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED=2,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED=3,
)


CUstream = int


def CUmemAllocationProp() -> Any:
    return SimpleNamespace(location=SimpleNamespace())


CUmemAccessDesc = CUmemAllocationProp


class Event:
    """A mark behind what was started before it."""

    def __init__(self, flags: int) -> None:
        self.flags, self.behind = flags, -1


class Driver:
    """The functions, and what they have given out."""

    def __init__(self) -> None:
        self.contexts = 0
        self.handles: set[int] = set()
        self.reserved: set[int] = set()
        self.mapped: dict[int, mmap.mmap] = {}
        self.registered: dict[int, int] = {}
        self.taken: dict[int, Any] = {}
        self.events = 0
        self.limit = 1 << 30
        self.lazy = False
        """Whether what is started on a stream waits until somebody waits for it, as on a card that is very slow."""
        self.waiting: list[Callable[[], object]] = []
        self.done = 0
        """How much of it has been done."""
        for name, value in globals().items():
            if name.startswith("CU"):
                setattr(self, name, value)

    def start(self, work: Callable[[], object]) -> tuple[Any, ...]:
        """Do it, or keep it until it is waited for."""
        self.waiting.append(work)
        if not self.lazy:
            self.run(len(self.waiting))
        return (OK,)

    def run(self, count: int) -> None:
        """Do what was started first."""
        now, self.waiting = self.waiting[:count], self.waiting[count:]
        self.done += len(now)
        for work in now:
            work()

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        return (OK,) if flags == 0 else (CUresult.CUDA_ERROR_OUT_OF_MEMORY,)

    def cuDriverGetVersion(self) -> tuple[Any, ...]:
        return OK, 13000

    def cuDeviceGetCount(self) -> tuple[Any, ...]:
        return OK, 1

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, ...]:
        return OK, ordinal

    def cuDeviceGetName(self, length: int, device: int) -> tuple[Any, ...]:
        return OK, f"card {device}".encode().ljust(length, b"\0")

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> tuple[Any, ...]:
        return OK, int(attribute > 0 and device == 0)

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, ...]:
        return OK, ("context", device)

    def cuCtxPushCurrent(self, context: Any) -> tuple[Any, ...]:
        self.contexts += 1
        return (OK,) if context == ("context", 0) else (CUresult.CUDA_ERROR_OUT_OF_MEMORY,)

    def cuCtxPopCurrent(self) -> tuple[Any, ...]:
        self.contexts -= 1
        return OK, ("context", 0)

    def cuCtxSynchronize(self) -> tuple[Any, ...]:
        self.run(len(self.waiting))
        return (OK,) if self.contexts else (CUresult.CUDA_ERROR_OUT_OF_MEMORY,)

    def cuStreamCreate(self, flags: int) -> tuple[Any, ...]:
        return OK, STREAM if flags == 1 else 0

    def cuStreamSynchronize(self, stream: Any) -> tuple[Any, ...]:
        assert self.contexts
        self.run(len(self.waiting))
        return (OK,) if stream == STREAM else (CUresult.CUDA_ERROR_OUT_OF_MEMORY,)

    def cuMemGetInfo(self) -> tuple[Any, ...]:
        return OK, 10_000_000, 20_000_000

    def cuMemGetAllocationGranularity(self, properties: Any, option: int) -> tuple[Any, ...]:
        assert (properties.type, properties.location.type, properties.location.id, option) == (1, 1, 0, 0)
        return OK, GRAIN

    def cuMemCreate(self, size: int, properties: Any, flags: int) -> tuple[Any, ...]:
        assert size % GRAIN == 0 and properties.requestedHandleTypes == 1 and flags == 0
        if size > self.limit:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY, None
        file = os.memfd_create("fake")
        os.truncate(file, size)
        self.handles.add(file)
        return OK, file

    def cuMemExportToShareableHandle(self, handle: int, kind: int, flags: int) -> tuple[Any, ...]:
        assert handle in self.handles and (kind, flags) == (1, 0)
        return OK, os.dup(handle)

    def cuMemImportFromShareableHandle(self, file: int, kind: int) -> tuple[Any, ...]:
        assert kind == 1
        handle = os.dup(file)
        self.handles.add(handle)
        return OK, handle

    def cuMemRelease(self, handle: int) -> tuple[Any, ...]:
        self.handles.remove(handle)
        os.close(handle)
        return (OK,)

    def cuMemAddressReserve(self, size: int, alignment: int, address: int, flags: int) -> tuple[Any, ...]:
        assert size % GRAIN == 0 and (alignment, address, flags) == (0, 0, 0)
        where = mmap.mmap(-1, size)
        pointer = ctypes.addressof(ctypes.c_char.from_buffer(where))
        self.reserved.add(pointer)
        self.mapped[pointer] = where  # the pages that the mapping will take the place of
        return OK, pointer

    def cuMemMap(self, pointer: int, size: int, offset: int, handle: int, flags: int) -> tuple[Any, ...]:
        assert pointer in self.reserved and (offset, flags) == (0, 0)
        libc = ctypes.CDLL(None)
        libc.mmap.restype, libc.mmap.argtypes = (
            ctypes.c_void_p,
            [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_long] * 4],
        )
        fixed = libc.mmap(pointer, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | 0x10, handle, 0)
        assert fixed == pointer
        return (OK,)

    def cuMemSetAccess(self, pointer: int, size: int, access: list[Any], count: int) -> tuple[Any, ...]:
        assert pointer in self.reserved and size and len(access) == count == 1
        assert (access[0].location.type, access[0].location.id, access[0].flags) == (1, 0, 3)
        return (OK,)

    def cuMemUnmap(self, pointer: int, size: int) -> tuple[Any, ...]:
        assert pointer in self.reserved and size
        return (OK,)

    def cuMemAddressFree(self, pointer: int, size: int) -> tuple[Any, ...]:
        assert size
        self.reserved.remove(pointer)
        return (OK,)

    def cuMemHostRegister(self, address: int, size: int, flags: int) -> tuple[Any, ...]:
        assert self.contexts and address not in self.registered and flags == 1
        self.registered[address] = size
        return (OK,)

    def cuMemHostUnregister(self, address: int) -> tuple[Any, ...]:
        del self.registered[address]
        return (OK,)

    def cuMemAlloc(self, size: int) -> tuple[Any, ...]:
        if size > self.limit:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY, None
        memory = ctypes.create_string_buffer(size)
        self.taken[ctypes.addressof(memory)] = memory
        return OK, ctypes.addressof(memory)

    def cuMemFree(self, pointer: int) -> tuple[Any, ...]:
        del self.taken[pointer]
        return (OK,)

    def cuEventCreate(self, flags: int) -> tuple[Any, ...]:
        self.events += 1
        return OK, Event(flags)

    def cuEventRecord(self, event: Any, stream: Any) -> tuple[Any, ...]:
        assert self.contexts and stream and event.flags == 2
        event.behind = self.done + len(self.waiting)
        return (OK,)

    def cuEventSynchronize(self, event: Any) -> tuple[Any, ...]:
        assert self.contexts and event.behind >= 0
        self.run(max(event.behind - self.done, 0))
        return (OK,)

    def cuEventDestroy(self, event: Any) -> tuple[Any, ...]:
        self.events -= 1
        return (OK,) if event else (CUresult.CUDA_ERROR_OUT_OF_MEMORY,)

    def cuMemcpyAsync(self, into: int, source: int, size: int, stream: Any) -> tuple[Any, ...]:
        assert stream == STREAM
        if any(begin <= source < begin + len(memory) for begin, memory in {**self.taken, **self.mapped}.items()):
            return self.start(lambda: ctypes.memmove(into, source, size))
        data = ctypes.string_at(source, size)  # of the host, and not pinned: the driver copies it first
        return self.start(lambda: ctypes.memmove(into, data, size))

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> tuple[Any, ...]:
        return (OK,) if self.contexts and stream and event and not flags else (CUresult.CUDA_ERROR_OUT_OF_MEMORY,)

    def cuMemHostAlloc(self, size: int, flags: int) -> tuple[Any, ...]:
        assert flags == 1
        return self.cuMemAlloc(size)

    def cuMemFreeHost(self, pointer: int) -> tuple[Any, ...]:
        return self.cuMemFree(pointer)

    def cuMemsetD32Async(self, pointer: int, value: int, count: int, stream: Any) -> tuple[Any, ...]:
        assert stream == STREAM and 0 <= value < 1 << 32
        words = np.ctypeslib.as_array((ctypes.c_uint32 * count).from_address(pointer))
        return self.start(lambda: words.fill(value))

    def cuMemsetD8Async(self, pointer: int, value: int, size: int, stream: Any) -> tuple[Any, ...]:
        assert stream == STREAM
        return self.start(lambda: ctypes.memset(pointer, value, size))

    def cuModuleLoadData(self, image: int) -> tuple[Any, ...]:
        assert ctypes.string_at(image).decode() == kernels.module()
        return OK, "module"

    def cuModuleGetFunction(self, module: str, name: bytes) -> tuple[Any, ...]:
        assert module == "module"
        return OK, name.decode()

    def cuLaunchKernel(
        self, function: str, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int, stream: Any,
        arguments: int, extra: int,
    ) -> tuple[Any, ...]:  # fmt: skip
        assert gx > 0 and bx > 0 and (gy, gz, by, bz, shared, extra, stream) == (1, 1, 1, 1, 0, 0, STREAM)
        given = Arguments(arguments, ARGUMENTS[function])

        def run() -> None:
            with np.errstate(all="ignore"):
                KERNELS[function](given, gx)

        return self.start(run)

    def cuGetErrorName(self, status: CUresult) -> tuple[Any, ...]:
        return OK, status.name.encode()

    def cuGetErrorString(self, status: CUresult) -> tuple[Any, ...]:
        return OK, b"out of memory" if status else b"no error"
