"""Which device memory a worker's sums take place in, by where its state is and by `MESHMEND_DEVICE_MEMORY`."""

from __future__ import annotations

import re

from meshmend.base.env import device_memory
from meshmend.errors import JobError
from meshmend.job.device.base import Memory
from meshmend.job.device.host_memory import HostMemory, PlainMemory
from meshmend.job.device.stand_in import StandIn

SETTINGS = ("", "off", "pageable", "stand-in", "stand-in-registered")


def memory_of(ordinal: int | None) -> Memory | None:
    """Return the memory of the CUDA device that the framework sums on; None for host memory, where couriers do it.

    `DeviceError` or `MissingLibrary` say why a device cannot be used.
    """
    setting = device_memory()
    if setting == "stand-in":
        return StandIn()
    found = re.fullmatch(r"cuda:(\d+)", setting)
    if setting not in SETTINGS and found is None:
        raise JobError(
            f"MESHMEND_DEVICE_MEMORY={setting!r} is not known; leave it empty, or give off, pageable or cuda:0"
        )
    if found is not None and ordinal is None:
        ordinal = int(found[1])
    if setting in SETTINGS[1:] or ordinal is None:
        return None
    from meshmend.job.device.cuda import CudaMemory  # loads the driver

    return CudaMemory(ordinal)


def host_memory_of(ordinal: int | None) -> HostMemory | None:
    """Return what copies between this CUDA device and buffers in host memory; None if the framework does it itself.

    `DeviceError` or `MissingLibrary` say why memory cannot be registered.
    """
    setting = device_memory()
    if setting == "stand-in-registered":
        return PlainMemory()
    if setting in ("pageable", "stand-in") or ordinal is None:
        return None
    from meshmend.job.device.host_memory import CudaHostMemory

    return CudaHostMemory(ordinal)
