"""Exact sums on the device: the arithmetic of `reduction/exact.py`, bit for bit, in PyTorch's operations.

As `frameworks/jax/exact.py`, which says how: every leaf is filled up to whole blocks, a lane is one array of rows, and
the grid stays on the host. The rows are gone through in pieces, so that what lies between two operations stays small.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from meshmend.job.reduction.exact import BLOCK, Exact
from meshmend.job.reduction.layout import Layout

ROWS = 1 << 15
"""Blocks gone through at a time: 128 MB of numbers."""


class ExactWire:
    """The sum of a worker's lanes as integers on the grid, and its notes."""

    def __init__(self, layout: Layout, exact: Exact, device: Any) -> None:
        self.layout, self.exact, self._device = layout, exact, device
        rows = [-(-leaf.size // BLOCK) for leaf in layout.leaves]
        self._digits, self._octaves = exact.digits
        # What fills up the last block of a leaf stays 0.
        self._values = torch.zeros((sum(rows), BLOCK), dtype=torch.float32, device=device)
        self._whole = torch.zeros_like(self._values, dtype=torch.int32)
        self._notes = torch.zeros((sum(rows), self._digits + 1), dtype=torch.int32, device=device)
        self._columns = torch.arange(self._digits + 1, device=device)
        ends = np.cumsum(rows).tolist()
        self._places = [(end - count, end, leaf) for count, end, leaf in zip(rows, ends, layout.leaves, strict=True)]

    def add(self, leaves: list[Any], *, first: bool) -> None:
        """One more lane."""
        if first:
            self._whole.zero_()
            self._notes.zero_()
        torch._foreach_copy_(self._leaves(self._values), leaves)
        per_unit = self._factors(0)
        for begin in range(0, len(self._values), ROWS):
            here = slice(begin, begin + ROWS)
            self._add(self._values[here], self._whole[here], self._notes[here], per_unit[here])

    def _add(self, values: Any, whole: Any, notes: Any, per_unit: Any) -> None:
        top = (values.view(torch.int32) & 0x7FFFFFFF).amax(dim=1)
        bad, used = top >= 0x7F800000, top >= 0x00800000
        # S, rounded up to COARSE bits: what lies above its digit's lowest place, from mantissa and exponent.
        exponent = (top >> 23) - 1
        digit = exponent.div(self._octaves, rounding_mode="floor")
        shift = exponent - digit * self._octaves - 20
        mantissa = top & 0x007FFFFF | 0x00800000
        down = (-shift).clamp(min=0)
        amount = torch.where(shift >= 0, mantissa << shift.clamp(min=0), mantissa + (1 << down) - 1 >> down)
        column = torch.where(bad, self._digits, torch.where(used, digit, -1))
        notes += torch.where(self._columns == column[:, None], torch.where(bad, 1, amount)[:, None], 0).to(torch.int32)
        # A block that does not fit its grid adds nothing: S will tell, and the round is void.
        fits = used & ~bad & (per_unit != 0) & (top.view(torch.float32) * per_unit < 2.0**31)
        units = (values * per_unit[:, None]).round_()
        whole += units.masked_fill_(~fits[:, None], 0).to(torch.int32)

    def flat(self) -> Any:
        """The wire."""
        return torch.cat([*(one.reshape(-1) for one in self._leaves(self._whole)), self._notes.reshape(-1)])

    def notes(self) -> Any:
        """The notes on the host: the device is waited for."""
        return self._notes.cpu().numpy()

    def open(self, total: Any) -> None:
        """Take over the integers of a wire."""
        bounds = self.layout.bounds.tolist()
        parts = [total[begin : begin + leaf.size] for begin, (_, _, leaf) in zip(bounds, self._places, strict=False)]
        torch._foreach_copy_([one.view(-1) for one in self._leaves(self._whole)], parts)

    def values(self, unit: Any) -> list[Any]:
        """From integers back to float32: rounded once, to nearest even."""
        factors = torch.from_numpy(unit).to(self._device, non_blocking=True)
        return self._leaves(self._whole.to(torch.float32).mul_(factors[:, None]))

    def _factors(self, which: int) -> Any:
        return torch.from_numpy(self.exact.factors[which]).to(self._device, non_blocking=True)

    def _leaves(self, rows: Any) -> list[Any]:
        """The leaves in an array of rows, as views."""
        return [rows[begin:end].view(-1)[: leaf.size].view(leaf.shape) for begin, end, leaf in self._places]
