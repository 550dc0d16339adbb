"""Adds up PyTorch lanes on their device.

Leaves are kept apart until there is a message to be made. The first lane's gradients are the sum, and those of later
lanes are added to them in place: with one lane, and in a world of one, no number is ever copied. What a lane returns on
the host (Python numbers, which parameters have a gradient) stays there, and joins the message when it is exported.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from meshmend.job.frameworks.arrays import leaves_of, rebuilt
from meshmend.job.frameworks.device import DeviceAccumulator, Fetch
from meshmend.job.frameworks.packed import PackedLanes
from meshmend.job.frameworks.torch.exact import ExactWire
from meshmend.job.frameworks.torch.host import array_begun
from meshmend.job.frameworks.torch.wires import Bf16Wire, FloatWire
from meshmend.job.reduction.base import Reduction
from meshmend.job.reduction.packing import DevicePart, DeviceTotal


@dataclass(frozen=True)
class NumpyLeaf:
    """A leaf, as numpy would describe it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def described(value: Any) -> Any:
    """A leaf as `Layout` wants it; types that numpy lacks have been widened before."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    return NumpyLeaf(tuple(value.shape), _numpy_type(value.dtype))


@cache
def _numpy_type(dtype: Any) -> np.dtype[Any]:
    return np.dtype(str(dtype).removeprefix("torch."))


class TorchSums(DeviceAccumulator):
    """The lanes of one worker."""

    def __init__(self, kind: type[Reduction], tree: Any, lanes: int, device: Any) -> None:
        leaves = leaves_of(tree)
        super().__init__(kind, [(name, described(value)) for name, value in leaves], lanes)
        self._tree = rebuilt(tree, [0] * len(leaves))
        self._device = device
        self._types = [getattr(torch, leaf.dtype.name, None) for leaf in self.layout.leaves]
        self._there = [number for number, (_, value) in enumerate(leaves) if isinstance(value, torch.Tensor)]
        self._here = [number for number, (_, value) in enumerate(leaves) if not isinstance(value, torch.Tensor)]
        self._sums: list[Any] = []
        self._seen: list[Any] = []
        """What the leaves of a lane were that was as it must be."""
        self._packed = PackedLanes(self.reduction, self.layout, self._here)
        self._last: list[Any] = []
        """The last lane's leaves, if lanes are packed: their memory takes the sums."""
        self._targets: dict[int, int] = {}
        """Where those are, once the part is exported, if each has memory of its own."""
        self._largest: dict[int, Any] = {}
        self._wire = Bf16Wire(self.layout) if self.reduction.head else FloatWire(self.layout)

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def accumulate(self, tree: Any, buffer: Any, *, first: bool) -> None:
        """Add one lane; the device does it when it gets there."""
        found = leaves_of(tree)
        leaves = [value for _, value in found]
        self._match(found)
        for number in self._whole:
            size = _largest(leaves[number])
            self._largest[number] = size if first else torch.maximum(self._largest[number], size)
        for number in self._here:
            leaves[number] = np.array(leaves[number], np.float32)
        for number in self._there:
            if leaves[number].dtype is not torch.float32:
                leaves[number] = leaves[number].to(torch.float32)
        if self._packed.takes(buffer):
            self._pack(buffer, leaves, first=first)
            return
        if self._exact is not None:
            self._exact.add([self._on_device(leaf) for leaf in leaves], first=first)
        elif first:
            self._sums = leaves
        else:
            if self._there:
                torch._foreach_add_([self._sums[n] for n in self._there], [leaves[n] for n in self._there])
            for number in self._here:
                self._sums[number] += leaves[number]

    def _match(self, leaves: list[tuple[str, Any]]) -> None:
        """Refuse a lane with other leaves than the first lane's; what all have in common is compared at once."""
        seen = [(name, getattr(value, "shape", None), getattr(value, "dtype", type(value))) for name, value in leaves]
        if seen != self._seen:
            self.layout.match([(name, described(value)) for name, value in leaves])
            self._seen = seen

    def _pack(self, part: DevicePart, leaves: list[Any], *, first: bool) -> None:
        """Have one lane packed where others see it."""
        self._packed.begin(part)
        for number in self._here:
            self._packed.put(number, leaves[number])
        for number in self._there:
            if not leaves[number].is_contiguous():
                leaves[number] = leaves[number].contiguous()
        if part.stream is not None:
            part.follow(torch.cuda.current_stream(self._device).cuda_stream)
        addresses = {number: leaves[number].data_ptr() for number in self._there}
        self._packed.pack(part, leaves, addresses, first=first)
        self._last, self._targets = leaves, {}

    def _unpacked(self, total: DeviceTotal, *, check: bool) -> list[Any] | tuple[int, ...] | None:
        """The sums of a total, in the memory of the last lane's leaves where each has its own."""
        last, self._last = self._last, []
        addresses, self._targets = self._targets, {}
        if not last or not addresses:
            sizes = [leaf.shape for leaf in self.layout.leaves]
            last = [torch.empty(size, dtype=torch.float32, device=self._device) for size in sizes]
            torch.cuda.current_stream(self._device).synchronize() if self._device.type == "cuda" else None
            addresses = {number: last[number].data_ptr() for number in self._there}
        stream = torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else None
        against = self._packed.unpack(total, addresses, check=check, stream=stream)
        self.checked = check
        if against != ():
            return against
        for number in self._here:
            last[number] = self._packed.sum_of(number)
        return last

    @cached_property
    def _exact(self) -> ExactWire | None:
        """What exact sums take two gradients of memory for, where lanes are not packed."""
        grid = self.reduction.grid
        return None if grid is None else ExactWire(self.layout, grid, self._device)

    def _apart(self, addresses: dict[int, int]) -> bool:
        """Whether no leaf shares memory with another."""
        if not addresses:
            return not self._there
        begins = np.fromiter(addresses.values(), np.uint64, len(addresses))
        order = np.argsort(begins)
        sizes = np.array([4 * self.layout.leaves[number].size for number in addresses], np.uint64)[order]
        begins = begins[order]
        return bool(((begins[:-1] + sizes[:-1] <= begins[1:]) | (sizes[:-1] == 0)).all())

    def _on_device(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf
        return torch.from_numpy(leaf).to(self._device, non_blocking=True)

    def part(self) -> Any:
        """The message without its footer, as one tensor on the device."""
        if self._exact is not None:
            return self._exact.flat()
        return self._wire.flat([self._on_device(one) for one in self._sums])

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def export(self, buffer: Any) -> None:
        """Copy the message to a buffer of the host or of a device, in one piece, and wait until it is there."""
        if self._packed.used:
            found = {number: self._last[number].data_ptr() for number in self._there}
            self._targets = found if self._apart(found) else {}  # now, while the device still computes
            return
        if isinstance(buffer, DevicePart):
            part = self.part()
            if part.is_cuda:
                torch.cuda.current_stream(part.device).synchronize()
            buffer.fill(part)
            return
        if hasattr(buffer, "array"):  # registered with the device, which copies it directly
            part = self.part()
            if part.is_cuda:
                torch.cuda.current_stream(part.device).synchronize()
            buffer.fill(part)
            return
        place = buffer if isinstance(buffer, torch.Tensor) else self._tensor(buffer)
        place.copy_(self.part())
        if place.is_cuda:
            torch.cuda.current_stream(place.device).synchronize()

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def sums(self, total: Any, *, check: bool) -> list[Any] | tuple[int, ...] | None:
        """The leaves of a total: one of numpy, a tensor, in device memory, or this worker's own part."""
        if isinstance(total, DeviceTotal):
            if self._packed.used:
                return self._unpacked(total, check=check)
            total = self._tensor(total.flat()).clone()  # the memory there gets another total, gradients may be kept
        own = total is self
        if not own and not isinstance(total, torch.Tensor):
            shared = not isinstance(total, np.ndarray)
            total = self._tensor(total[: self.reduction.size])
            total = total.clone() if shared else total
        if self._exact is not None:
            outcome = self._exact_sums(self._exact, total)
            return self._parted(outcome, outcome) if isinstance(outcome, list) else outcome
        if own:
            if not self.reduction.head:
                return list(self._sums)
            there = list(self._wire.rounded([self._on_device(one) for one in self._sums]))
            return self._parted(there, there)
        total = total[: self.reduction.size]
        there = list(self._wire.split(total.to(self._device, non_blocking=True)))
        return self._parted(there, there if total.is_cuda else self._wire.split(total))

    def _tensor(self, flat: Any) -> Any:
        """An array of numpy, or a view of device memory that workers share, as a tensor in the same memory."""
        if isinstance(flat, np.ndarray):
            return torch.from_numpy(flat)
        return torch.as_tensor(flat, device=self._device)

    def _exact_sums(self, wire: ExactWire, total: Any) -> list[Any] | tuple[int, ...] | None:
        exact, unit = wire.exact, wire.exact.factors[1]
        if total is self:
            notes = wire.notes()
        else:
            total = total.to(self._device, non_blocking=True)
            notes = total[exact.size : exact.wire_size].reshape(len(unit), -1)
            wire.open(total[: exact.size])
        judged = exact.judge_begun(notes)
        values = wire.values(unit)  # most rounds are good: the device need not wait for the host
        against = judged()
        return values if against is None else against.bad or None

    def _parted(self, there: list[Any], here: list[Any]) -> list[Any]:
        """Leaves on the device, but those on the host that the lanes returned there."""
        found = list(there)
        if self._here and here is there:  # one copy for all of them
            whole = torch.cat([there[number].reshape(-1) for number in self._here]).cpu()
            sizes = [self.layout.leaves[number].size for number in self._here]
            host = [one.numpy().reshape(self.layout.leaves[n].shape) for n, one in
                    zip(self._here, torch.split(whole, sizes), strict=True)]  # fmt: skip
        else:
            host = [here[number].numpy().copy() for number in self._here]
        for number, one in zip(self._here, host, strict=True):
            found[number] = one
        return found

    def release(self) -> None:
        """The gradients are the parameters' own now."""
        self._sums = []
        self._last, self._targets = [], {}

    def finite(self, sums: list[Any]) -> npt.NDArray[np.bool_]:
        """The largest magnitude of every leaf on the device in one operation, and one copy."""
        found = np.array([isinstance(one, torch.Tensor) or bool(np.isfinite(one).all()) for one in sums])
        full = [number for number in self._there if self.layout.leaves[number].size]
        if full:
            norms = torch._foreach_norm([sums[number] for number in full], float("inf"))
            found[full] = torch.stack(norms).isfinite().cpu().numpy()
        with np.errstate(over="ignore"):
            narrow = [np.isfinite(sums[n].astype(self.layout.leaves[n].dtype)).all() for n in self._narrow]
        return np.concatenate([found, np.array(narrow, bool)])

    def spans(self, sums: list[Any]) -> Fetch:
        """A few numbers, fetched later."""
        rows = []
        for number in self._whole:
            one = torch.as_tensor(sums[number]).reshape(-1)
            empty = not one.numel()
            found = [self._largest[number], 0 if empty else one.amin(), 0 if empty else one.amax()]
            rows.append(torch.stack([torch.as_tensor(x, dtype=torch.float32).to(self._device) for x in found]))
        return array_begun(torch.stack(rows))

    def rebuilt(self, sums: list[Any]) -> Any:
        """The tree, in the first lane's types."""
        for number in self._there:
            if sums[number].dtype != self._types[number]:
                sums[number] = sums[number].to(self._types[number])
        for number in self._here:
            sums[number] = sums[number].astype(self.layout.leaves[number].dtype)
        return rebuilt(self._tree, sums)


def _largest(value: Any) -> Any:
    """The largest magnitude of integers, as a tensor where they are."""
    found = torch.as_tensor(value).reshape(-1)
    return found.abs().amax().to(torch.float32) if found.numel() else torch.zeros((), device=found.device)
