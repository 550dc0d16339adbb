"""How the sums of a worker's lanes become a message on the device, and a message sums: PyTorch's part of `device.py`.

    float32   leaf after leaf                                           `reduction/float32.py`
    bf16      large leaves rounded, two in the space of one float32     `reduction/bf16.py`

Bit for bit what those files do on the host. Exact sums are in `exact.py`. A few operations for all leaves together, not
some for each: a model has hundreds, and every operation costs the processor microseconds to start.
"""

from __future__ import annotations

from typing import Any

import torch

from meshmend.job.reduction.bf16 import travels_as_bf16
from meshmend.job.reduction.layout import Layout


class FloatWire:
    """Leaf after leaf."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def rounded(self, sums: list[Any]) -> list[Any]:
        """Return the sums of a world of one."""
        return sums

    def flat(self, sums: list[Any]) -> Any:
        """The message."""
        return torch.cat([one.reshape(-1) for one in sums])

    def split(self, total: Any) -> list[Any]:
        """The leaves of a message, as views of it."""
        return _views(total, [(leaf.size, leaf.shape) for leaf in self.layout.leaves])


class Bf16Wire(FloatWire):
    """Large leaves first, as bf16."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._is_large = [travels_as_bf16(leaf) for leaf in layout.leaves]
        pairs = list(zip(layout.leaves, self._is_large, strict=True))
        self._large = [(leaf.size, leaf.shape) for leaf, is_large in pairs if is_large]
        self._small = [(leaf.size, leaf.shape) for leaf, is_large in pairs if not is_large]
        self._halves = sum(size for size, _ in self._large)

    def rounded(self, sums: list[Any]) -> list[Any]:
        """Rounded once, as in a world of many."""
        if not self._large:
            return sums
        large, small = self._parted(sums)
        return self._joined(_views(widened(half(torch.cat(large))), self._large), small)

    def flat(self, sums: list[Any]) -> Any:
        """The message: pairs of halves, then the small leaves."""
        large, small = self._parted(sums)
        parts = [one.reshape(-1) for one in small]
        if large:
            halves = torch.nn.functional.pad(half(torch.cat(large)), (0, self._halves % 2))
            parts.insert(0, halves.view(torch.float32))
        return torch.cat(parts)

    def split(self, total: Any) -> list[Any]:
        """The leaves of a message."""
        head = -(-self._halves // 2)
        large = widened(total[:head].view(torch.int16)[: self._halves])
        return self._joined(_views(large, self._large), _views(total[head:], self._small))

    def _parted(self, sums: list[Any]) -> tuple[list[Any], list[Any]]:
        pairs = list(zip(sums, self._is_large, strict=True))
        return [one.reshape(-1) for one, large in pairs if large], [one for one, large in pairs if not large]

    def _joined(self, large: list[Any], small: list[Any]) -> list[Any]:
        left, right = iter(large), iter(small)
        return [next(left if is_large else right) for is_large in self._is_large]


def half(x: Any) -> Any:
    """Float32 as bf16, in int16: to nearest, ties to even, and every NaN the same."""
    bits = x.view(torch.int32)
    kept = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return torch.where(x.isnan(), 0x7FC0, kept).to(torch.int16)


def widened(halves: Any) -> Any:
    """The reverse; nothing is lost."""
    return (halves.to(torch.int32) << 16).view(torch.float32)


def _views(flat: Any, leaves: list[tuple[int, tuple[int, ...]]]) -> list[Any]:
    """Leaves of these sizes and shapes, one after another."""
    parts = torch.split(flat[: sum(size for size, _ in leaves)], [size for size, _ in leaves]) if leaves else ()
    return [part.view(shape) for part, (_, shape) in zip(parts, leaves, strict=True)]
