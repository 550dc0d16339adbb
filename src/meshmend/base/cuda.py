"""The part of CUDA's driver API that shared device memory needs: `cuda.bindings` with types and readable errors.

Every call may come from any thread: the device's primary context, the one that PyTorch and JAX use, is pushed for the
call and popped after it, so a thread's own context stays what it was. Loading this module loads no CUDA; `Device` does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Any

from meshmend.errors import DeviceError, MissingLibrary

OLDEST = 12000
"""The oldest driver: CUDA 12.0 (525)."""


def driver() -> Any:
    """The bindings; `MissingLibrary` where they are not installed."""
    try:
        from cuda.bindings import driver as found
    except ImportError:
        raise MissingLibrary("sums in device memory need cuda-bindings: pip install 'meshmend[gpu]'") from None
    return found


def call(name: str, *arguments: Any) -> Any:
    """Call a function of the driver; its results without the status, which must be success."""
    bindings = driver()
    try:
        status, *results = getattr(bindings, name)(*arguments)
    except RuntimeError as error:  # there is no libcuda.so.1, or it lacks this function
        raise DeviceError(f"no NVIDIA driver can be used here ({str(error).splitlines()[0]})") from None
    if status != bindings.CUresult.CUDA_SUCCESS:
        raise DeviceError(f"{name} failed: {described(status)}")
    return results[0] if len(results) == 1 else tuple(results) if results else None


def described(status: Any) -> str:
    """Return the driver's own name of an error, and its description."""
    bindings = driver()
    words = [
        text.decode() for text in (bindings.cuGetErrorName(status)[1], bindings.cuGetErrorString(status)[1]) if text
    ]
    return ", ".join(words) or str(int(status))


def count() -> int:
    """How many devices this process sees; 0 without a driver, `MissingLibrary` without the bindings."""
    try:
        call("cuInit", 0)
        return int(call("cuDeviceGetCount"))
    except DeviceError:
        return 0


class Mapping:
    """Device memory mapped into this process: its own, or another process's."""

    def __init__(self, device: Device, handle: Any, nbytes: int) -> None:
        self.device, self._handle, self.nbytes = device, handle, nbytes
        self.pointer = 0
        try:
            self._map()
        except DeviceError:
            self.close()
            raise

    def _map(self) -> None:
        with self.device.current():
            bindings = driver()
            self._place = call("cuMemAddressReserve", self.nbytes, 0, bindings.CUdeviceptr(0), 0)
            self.pointer = int(self._place)
            self._mapped = False
            call("cuMemMap", self._place, self.nbytes, 0, self._handle, 0)
            self._mapped = True
            access = bindings.CUmemAccessDesc()
            access.location.type = bindings.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            access.location.id = self.device.ordinal
            access.flags = bindings.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            call("cuMemSetAccess", self._place, self.nbytes, [access], 1)

    def export(self) -> int:
        """A file descriptor by which another process can map it."""
        kind = driver().CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        with self.device.current():
            return int(call("cuMemExportToShareableHandle", self._handle, kind, 0))

    def close(self) -> None:
        """Unmap it; the memory itself lives as long as any process has it mapped or holds its descriptor."""
        with self.device.current():
            if self.pointer:
                if self._mapped:
                    call("cuMemUnmap", self._place, self.nbytes)
                call("cuMemAddressFree", self._place, self.nbytes)
                self.pointer = 0
            if self._handle is not None:
                call("cuMemRelease", self._handle)
                self._handle = None


class Stream:
    """One stream of a device: what is started here is done in order, and waits for no other stream."""

    def __init__(self, device: Device, stream: Any) -> None:
        self._device, self._stream = device, stream
        self.number = int(stream)
        """What other libraries know it by."""

    @cached_property
    def _order(self) -> Any:
        """An event that is recorded again and again: a stream waits for what it was recorded behind last."""
        return call("cuEventCreate", 2)  # CU_EVENT_DISABLE_TIMING

    def follow(self, stream: int) -> None:
        """Start nothing here before what another stream has been given so far is complete."""
        with self._device.current():
            call("cuEventRecord", self._order, driver().CUstream(stream))
            call("cuStreamWaitEvent", self._stream, self._order, 0)

    def lead(self, stream: int) -> None:
        """The reverse: have another stream start nothing before what was started here so far is complete."""
        with self._device.current():
            call("cuEventRecord", self._order, self._stream)
            call("cuStreamWaitEvent", driver().CUstream(stream), self._order, 0)

    def copy(self, into: int, source: int, nbytes: int) -> None:
        """Start a copy between two pointers, each of the device or of the host."""
        if nbytes:
            bindings = driver()
            with self._device.current():
                call("cuMemcpyAsync", bindings.CUdeviceptr(into), bindings.CUdeviceptr(source), nbytes, self._stream)

    def mark(self) -> Any:
        """A mark behind what was started here so far; `wait` for it once."""
        with self._device.current():
            event = call("cuEventCreate", 2)  # CU_EVENT_DISABLE_TIMING
            call("cuEventRecord", event, self._stream)
        return event

    def wait(self, mark: Any) -> None:
        """Wait until everything before a mark is complete."""
        with self._device.current():
            call("cuEventSynchronize", mark)
            call("cuEventDestroy", mark)

    def fill(self, pointer: int, value: int, count: int) -> None:
        """Start to fill memory with so many 32-bit words."""
        if count:
            with self._device.current():
                call("cuMemsetD32Async", driver().CUdeviceptr(pointer), value & 0xFFFFFFFF, count, self._stream)

    def zero(self, pointer: int, nbytes: int) -> None:
        """Start to fill memory with zeros."""
        if nbytes:
            with self._device.current():
                call("cuMemsetD8Async", driver().CUdeviceptr(pointer), 0, nbytes, self._stream)

    def finish(self, *, everything: bool = False) -> None:
        """Wait until what was started here is complete; or everything, by whomever it was started in this process."""
        with self._device.current():
            call("cuCtxSynchronize") if everything else call("cuStreamSynchronize", self._stream)

    def launch(self, function: Any, blocks: int, threads: int, arguments: Sequence[Any]) -> None:
        """Start a kernel; the arguments are ctypes values."""
        if not blocks:
            return
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(one) for one in arguments))
        with self._device.current():
            call(
                "cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, self._stream, ctypes.addressof(pointers), 0
            )  # fmt: skip


class Device:
    """One device, in the primary context of this process."""

    def __init__(self, ordinal: int) -> None:
        call("cuInit", 0)
        version = int(call("cuDriverGetVersion"))
        if version < OLDEST:
            raise DeviceError(
                f"the NVIDIA driver is of CUDA {version // 1000}.{version % 1000 // 10}, and sums in device memory "
                f"need one of CUDA {OLDEST // 1000}.0 or later"
            )
        self.ordinal = ordinal
        self._device = call("cuDeviceGet", ordinal)
        self._context = call("cuDevicePrimaryCtxRetain", self._device)
        self.stream = self.another_stream()
        self.processors = self._attribute("CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT")
        self.function = cache(self._function)

    def another_stream(self) -> Stream:
        """A stream in which things are done in parallel with those in others."""
        with self.current():
            return Stream(self, call("cuStreamCreate", 1))  # CU_STREAM_NON_BLOCKING: it waits for no other stream

    @contextmanager
    def current(self) -> Iterator[None]:
        """Have this device's context for the calls inside."""
        call("cuCtxPushCurrent", self._context)
        try:
            yield
        finally:
            call("cuCtxPopCurrent")

    def _attribute(self, name: str) -> int:
        return int(call("cuDeviceGetAttribute", getattr(driver().CUdevice_attribute, name), self._device))

    @property
    def name(self) -> str:
        """What its maker calls it."""
        return str(call("cuDeviceGetName", 256, self._device).split(b"\0")[0].decode())

    @property
    def can_export(self) -> bool:
        """Whether memory of this device can be given to another process as a file descriptor."""
        return bool(
            self._attribute("CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED")
            and self._attribute("CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED")
        )

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes."""
        with self.current():
            free, total = call("cuMemGetInfo")
        return int(free), int(total)

    def _properties(self) -> Any:
        bindings = driver()
        found = bindings.CUmemAllocationProp()
        found.type = bindings.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        found.location.type = bindings.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        found.location.id = self.ordinal
        found.requestedHandleTypes = bindings.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        return found

    def allocate(self, nbytes: int) -> Mapping:
        """Allocate memory that can be exported: at least this many bytes."""
        bindings, properties = driver(), self._properties()
        with self.current():
            least = bindings.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
            step = int(call("cuMemGetAllocationGranularity", properties, least))
            size = -(-max(nbytes, 1) // step) * step
            try:
                handle = call("cuMemCreate", size, properties, 0)
            except DeviceError as error:
                free, total = self.memory()
                raise DeviceError(
                    f"{size / 1e6:.0f} MB of {self.name} were asked for, which has {free / 1e6:.0f} MB of "
                    f"{total / 1e6:.0f} MB left ({error})"
                ) from None
        return Mapping(self, handle, size)

    def attach(self, file: int, nbytes: int) -> Mapping:
        """Map the memory of another process, given by a descriptor, which stays open, and by its announced size."""
        kind = driver().CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        with self.current():
            handle = call("cuMemImportFromShareableHandle", file, kind)
        return Mapping(self, handle, nbytes)

    def register(self, address: int, nbytes: int) -> None:
        """Let the device access this host memory directly, at the full speed of the wire."""
        with self.current():
            call("cuMemHostRegister", address, nbytes, 1)  # CU_MEMHOSTREGISTER_PORTABLE: for every context

    def unregister(self, address: int) -> None:
        """The reverse; before the memory is unmapped."""
        with self.current():
            call("cuMemHostUnregister", address)

    def take(self, nbytes: int) -> int:
        """Memory for this process alone."""
        with self.current():
            return int(call("cuMemAlloc", max(nbytes, 1)))

    def give_back(self, pointer: int) -> None:
        """The reverse."""
        with self.current():
            call("cuMemFree", driver().CUdeviceptr(pointer))

    def pinned(self, nbytes: int) -> int:
        """Memory of the host that kernels read and write where it is; for small things."""
        with self.current():
            return int(call("cuMemHostAlloc", max(nbytes, 1), 1))  # CU_MEMHOSTALLOC_PORTABLE

    def unpin(self, pointer: int) -> None:
        """Give that back."""
        with self.current():
            call("cuMemFreeHost", pointer)

    def load(self, ptx: str) -> Any:
        """Have the driver compile a module."""
        text = ctypes.create_string_buffer(ptx.encode())
        with self.current():
            return call("cuModuleLoadData", ctypes.addressof(text))

    def _function(self, module: Any, name: str) -> Any:
        """A kernel of a module."""
        with self.current():
            return call("cuModuleGetFunction", module, name.encode())
