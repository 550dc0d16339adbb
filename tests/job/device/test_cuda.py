"""The wrapper of the driver's calls, over a driver that has the host's memory."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest

from meshmend.base import cuda
from meshmend.errors import DeviceError, MissingLibrary
from meshmend.job.device.choose import memory_of
from meshmend.job.device.cuda import CudaMemory
from meshmend.job.reduction.base import WireFormat
from meshmend.job.reduction.float32 import Float32
from tests.job.device.fake_driver import GRAIN, Driver
from tests.job.device.test_memory import check_sums_have_the_bits_of_numpy

WIRE = WireFormat(Float32, 100)


def test_blocks_are_made_exported_mapped_and_given_back(driver: Driver) -> None:
    memory = CudaMemory(0)
    values = np.arange(100, dtype=np.float32)
    own = memory.allocate(values.nbytes)
    assert own.nbytes == GRAIN
    memory.upload(values, (own, 0))
    file = own.export()
    other = memory.attach(file, own.nbytes)
    os.close(file)
    memory.copy((other, 400), (own, 40), 200)
    memory.zero((other, 0), 40)
    found = np.empty(150, np.float32)
    memory.download((own, 0), found)
    memory.finish()
    memory.finish(everything=True)
    assert found.tolist() == [0.0] * 10 + [*range(10, 100), *range(10, 60)]
    own.close()
    other.close()
    assert not driver.handles and not driver.reserved and not driver.contexts


def test_sums_have_the_bits_of_numpy(driver: Driver) -> None:
    check_sums_have_the_bits_of_numpy(CudaMemory(0))
    assert not driver.handles and not driver.contexts
    gc.collect()


def test_a_view_is_what_frameworks_take(driver: Driver) -> None:
    memory = CudaMemory(0)
    block = memory.allocate(800)
    view = memory.view((block, 400), 100, WIRE)
    about = view[10:30].__cuda_array_interface__
    pointer = view.__cuda_array_interface__["data"][0]
    assert about["data"] == (pointer + 40, False) and about["shape"] == (20,) and about["typestr"] == "<f4"
    assert len(view[:7]) == 7 and len(view[90:]) == 10 and not len(view[5:5])
    other = memory.allocate(400)
    memory.upload(np.full(100, 3, np.float32), (other, 0))
    view.fill(memory.view((other, 0), 100, WIRE))
    found = np.empty(200, np.float32)
    memory.download((block, 0), found)
    assert not found[:100].any() and (found[100:] == 3).all()
    with pytest.raises(ValueError):
        view.fill(view[1:])
    with pytest.raises(IndexError):
        view[::2]
    assert not driver.contexts


def test_errors_have_the_driver_s_own_name(driver: Driver) -> None:
    driver.limit = GRAIN
    with pytest.raises(DeviceError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        CudaMemory(0).allocate(2 * GRAIN)
    assert not driver.handles and not driver.contexts


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"cuDriverGetVersion": lambda: (0, 11080)}, "11.8"),
        ({"cuDeviceGetAttribute": lambda attribute, _: (0, int(attribute == 1))}, "card 0"),
    ],
)
def test_a_device_that_cannot_do_it_is_refused_with_a_sentence(
    driver: Driver, change: dict[str, object], found: str
) -> None:
    vars(driver).update(change)
    with pytest.raises(DeviceError, match=found):
        memory_of(0)


def test_without_bindings_or_driver_there_are_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHMEND_DEVICE_MEMORY", "off")
    assert memory_of(0) is None and memory_of(None) is None
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    with pytest.raises(MissingLibrary):
        cuda.count()

    class NoDriver:
        def cuInit(self, flags: int) -> None:
            raise RuntimeError(f"libcuda.so.1 cannot be found ({flags})")

    monkeypatch.setattr(cuda, "driver", NoDriver)
    assert cuda.count() == 0
