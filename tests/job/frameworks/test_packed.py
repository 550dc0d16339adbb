"""Lanes that are packed into device memory, as PyTorch's accumulator sees that: a part and a total that do little."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from meshmend.job.device.packing_plain import PlainPacking
from meshmend.job.device.stand_in import StandIn
from meshmend.job.frameworks.torch.sums import TorchSums
from meshmend.job.reduction.base import Reduction
from meshmend.job.reduction.exact import ExactResult
from meshmend.job.reduction.float32 import Float32
from meshmend.job.reduction.packing import Addresses, DevicePart, DeviceTotal, Packing


class Part(DevicePart):
    stream = None

    def __init__(self) -> None:
        self.calls: list[str] = []

    def packing(self, reduction: Reduction) -> Packing | None:
        return PlainPacking(StandIn(), reduction)

    def pack(self, packing: Packing, leaves: Addresses, *, first: bool) -> None:
        del packing, leaves, first
        self.calls.append("pack")

    def fill(self, message: Any) -> None:
        del message
        raise AssertionError("it packs")

    def pinned(self, size: int) -> np.ndarray:
        return np.zeros(size, np.float32)

    def follow(self, stream: int) -> None:
        assert stream == 5
        self.calls.append("follow")

    def finish(self) -> None:
        self.calls.append("finish")


class Total(DeviceTotal):
    def __init__(self) -> None:
        self.led: list[int | None] = []

    def unpack(
        self, packing: Packing, leaves: Addresses, *, check: bool, soon: Sequence[int] = ()
    ) -> ExactResult | None:
        del check
        assert [packing.layout.leaves[leaf].size for leaf in soon] == [1], "the loss, which is on the host"
        for address, size in zip(leaves, packing.sizes.tolist(), strict=True):
            np.ctypeslib.as_array((ctypes.c_float * size).from_address(address))[:] = 3
        return None

    def lead(self, stream: int | None) -> None:
        self.led.append(stream)

    def flat(self) -> Any:
        raise AssertionError("it packs")


@pytest.mark.parametrize("tensors", [False, True])
def test_a_worker_without_lanes_gets_the_sums_too(tensors: bool) -> None:
    tree = {"loss": 1.0, **({"grad": torch.ones(4)} if tensors else {})}
    sums, part = TorchSums(Float32, tree, 4, torch.device("cpu")), Part()
    sums.accumulate(tree, part, first=True)
    sums.export(part)
    for step in range(2):
        total = Total()
        found = sums.finish(total, step)
        assert total.led == [None], "the host waits, where there is no stream"
        assert found["loss"] == 3 and (not tensors or (found["grad"] == 3).all())


def test_the_host_waits_for_the_lane_before_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for the last one, which the device would then compute while nothing else is launched."""
    tree, part = {"grad": torch.ones(4)}, Part()
    part.stream = 7  # type: ignore[assignment]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: type("Stream", (), {"cuda_stream": 5}))
    sums = TorchSums(Float32, tree, 4, torch.device("cpu"))
    for lane in range(3):
        sums.accumulate({"grad": torch.ones(4)}, part, first=lane == 0)
    assert part.calls == ["follow", "pack", *["finish", "follow", "pack"] * 2]
