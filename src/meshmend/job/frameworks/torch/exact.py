"""Exact sums on the device: the arithmetic of `reduction/exact.py`, bit for bit, in PyTorch's operations.

As `frameworks/jax/exact.py`, which says how: every leaf is filled up to whole blocks, a lane is one array of rows, and
the grid moves on the device. The rows are gone through in pieces, so that what lies between two operations stays small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from meshmend.job.frameworks.torch.host import array_begun
from meshmend.job.reduction import exact as rules
from meshmend.job.reduction.exact import BLOCK, FALL, FRESH, Exact, ExactResult
from meshmend.job.reduction.layout import Layout

FLOAT64 = ("cpu", "cuda")
"""Devices whose float64 is that of IEEE 754; elsewhere the host judges."""
ONE = 127 << 23
"""The bits of 1.0 as a float32."""
ROWS = 1 << 15
"""Blocks gone through at a time: 128 MB of numbers."""


class DeviceGrid:
    """The grid of an `Exact` on the device: the same rules, and the same levels on the host after every round."""

    def __init__(self, exact: Exact, device: Any) -> None:
        self._exact, self._device = exact, device
        self.size, self.wire_size = exact.size, exact.wire_size
        self._known: Any = None  # the levels of the host that those on the device are
        self._level: Any = None
        self._factors: Any = None
        self._leaf_of = torch.from_numpy(exact.leaf_of.astype(np.int64)).to(device)

    @property
    def factors(self) -> tuple[Any, Any]:
        """As `Exact.factors`, on the device."""
        if self._known is not self._exact.level:
            self._known = self._exact.level
            self._level, *factors = (
                torch.from_numpy(one).to(self._device, non_blocking=True)
                for one in (self._exact.level, *self._exact.factors)
            )
            self._factors = tuple(factors)
        return self._factors  # type: ignore[no-any-return]

    def judge(self, notes: Any) -> ExactResult | None:
        """As `Exact.judge`."""
        return self.judge_begun(notes)()

    def judge_begun(self, notes: Any) -> Callable[[], ExactResult | None]:
        """Have the notes judged on the device; what is returned waits for a word and the levels."""
        if not isinstance(notes, torch.Tensor):
            return lambda: self._exact.judge(notes)
        if self._device.type not in FLOAT64:
            return lambda: self._exact.judge(notes.cpu().numpy())
        assert self.factors is not None, "the levels are there now"
        words, level, factors = self._moved(notes.to(self._device))
        fetch = array_begun(words)

        def judged() -> ExactResult | None:
            found = fetch()
            if found[0] == rules.BAD:
                return self._exact.judge(notes.cpu().numpy())
            self._exact.move(found[1:].astype(np.int32))
            self._known, self._level, self._factors = self._exact.level, level, factors
            return None if found[0] == rules.GOOD else ExactResult(None)

        return judged

    def _moved(self, notes: Any) -> tuple[Any, Any, tuple[Any, Any]]:
        """`Exact.judge` line by line: the verdict and the levels in a row, and the new grid."""
        level = self._level
        spread = torch.zeros(len(level), dtype=torch.float64, device=self._device)
        for column, worth in enumerate(self._exact.worth.tolist()):
            spread.add_(notes[:, column], alpha=worth)
        bad = ((notes[:, -1] != 0) | (spread >= rules.MOST)).any()
        bits, used = spread.view(torch.int64), spread > 0
        need = ((bits >> 52).to(torch.int32) - (1022 + 31 - rules.HEADROOM)).clamp(rules.LOW, rules.HIGH) * FALL
        need = need.masked_fill_(~used, FRESH)
        top = self._largest(need)
        # Numbers that are not negative compare as their bits do. A fresh block's limit is far below all but 0.
        limit = (level + (FALL - 1)) >> rules.OCTAVE
        small = bits >= (limit.to(torch.int64) << 52) + rules.ROOM_BITS
        up = torch.where(self._largest(small.to(torch.int32)) > 0, torch.maximum(level, top), level)
        fall = torch.maximum(level - top, used.to(torch.int32)).clamp_(max=FALL).masked_fill_(top == FRESH, 0)
        redo = small.any()
        new = torch.where(redo, up, torch.maximum(level - fall, need))
        verdict = torch.where(bad, rules.BAD, torch.where(redo, rules.REDO, rules.GOOD))
        words = torch.cat([verdict.reshape(1), new]).to(torch.int16)
        shifted = ((new + (FALL - 1)) >> rules.OCTAVE) << 23  # where the exponent of a float32 is
        fresh = new == FRESH
        on, off = (one.masked_fill_(fresh, 0).view(torch.float32) for one in (ONE - shifted, ONE + shifted))
        return words, new, (on, off)

    def _largest(self, values: Any) -> Any:
        """The largest value of each block's leaf."""
        found = torch.full((len(self._exact.leaves),), FRESH, dtype=torch.int32, device=self._device)
        return found.scatter_reduce_(0, self._leaf_of, values, "amax")[self._leaf_of]


class ExactWire:
    """The sum of a worker's lanes as integers on the grid, and its notes."""

    def __init__(self, layout: Layout, exact: Exact, device: Any) -> None:
        self.layout, self.exact, self._device = layout, DeviceGrid(exact, device), device
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
        torch._foreach_copy_(self._leaves(self._values), leaves)
        per_unit, notes = self.exact.factors[0], self._notes.zero_() if first else self._notes
        if not len(notes):
            return
        fits = self._noted(notes, per_unit)[:, None]
        for begin in range(0, len(notes), ROWS):
            here = slice(begin, begin + ROWS)
            units = (self._values[here] * per_unit[here, None]).round_().to(torch.int32)
            if first:
                torch.mul(units, fits[here], out=self._whole[here])
            else:
                self._whole[here].addcmul_(units, fits[here])

    def _noted(self, notes: Any, per_unit: Any) -> Any:
        """Add this lane's notes; returns 1 for blocks that fit their grid.

        Others add nothing: S will tell, and the round is void.
        """
        top = torch.linalg.vector_norm(self._values, float("inf"), dim=1)  # NaN where one of them is
        top = top.view(torch.int32) & 0x7FFFFFFF
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
        fits = used & ~bad & (per_unit != 0) & (top.view(torch.float32) * per_unit < 2.0**31)
        return fits.to(torch.int32)

    def flat(self) -> Any:
        """The wire."""
        return torch.cat([*(one.reshape(-1) for one in self._leaves(self._whole)), self._notes.reshape(-1)])

    def notes(self) -> Any:
        """The notes, on the device."""
        return self._notes

    def open(self, total: Any) -> None:
        """Take over the integers of a wire."""
        bounds = self.layout.bounds.tolist()
        parts = [total[begin : begin + leaf.size] for begin, (_, _, leaf) in zip(bounds, self._places, strict=False)]
        torch._foreach_copy_([one.view(-1) for one in self._leaves(self._whole)], parts)

    def values(self, unit: Any) -> list[Any]:
        """From integers back to float32: rounded once, to nearest even."""
        return self._leaves(self._whole * unit[:, None])  # one operation: an integer becomes a float32 first

    def _leaves(self, rows: Any) -> list[Any]:
        """The leaves in an array of rows, as views."""
        return [rows[begin:end].view(-1)[: leaf.size].view(leaf.shape) for begin, end, leaf in self._places]
