"""Exact sums on the device: the arithmetic of `reduction/exact.py`, bit for bit, compiled by JAX.

Lanes are rounded to the grid and added as integers where they are. The grid itself stays on the host: it is a few bytes
for each block of 1024 numbers, and moves once per step, by the notes of the total.

Every leaf is filled up with zeros to whole blocks, so that a lane is one array of rows:

    padded    │ leaf 0, row after row │ 0 0 │ leaf 1 │ 0 │ …        [blocks, 1024]
    wire      │ leaf 0 │ leaf 1 │ … │ notes │

There are no 64-bit numbers here: the coarse digits of S are taken from the bits of the largest number of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshmend.job.reduction.exact import BLOCK, Exact
from meshmend.job.reduction.layout import Layout


class ExactWire:
    """The sum of a worker's lanes as integers on the grid, and its notes."""

    def __init__(self, layout: Layout, exact: Exact) -> None:
        self.layout, self.exact = layout, exact
        self._rows = [-(-leaf.size // BLOCK) for leaf in layout.leaves]
        self._digits, self._octaves = exact.digits
        self.add = jax.jit(self._add)
        self.add_in_place = jax.jit(self._add, donate_argnums=(0, 1))
        self.flat = jax.jit(self._flat)
        self.opened = jax.jit(self._opened)
        self.values = jax.jit(self._values)

    def empty(self) -> tuple[Any, Any]:
        """No lane yet."""
        rows = sum(self._rows)
        return jnp.zeros((rows, BLOCK), jnp.int32), jnp.zeros((rows, self._digits + 1), jnp.int32)

    def _padded(self, leaves: Sequence[Any]) -> Any:
        flat = [leaf.reshape(-1) for leaf in leaves]
        return jnp.concatenate([jnp.pad(one, (0, -len(one) % BLOCK)).reshape(-1, BLOCK) for one in flat])

    def _add(self, whole: Any, notes: Any, leaves: Sequence[Any], per_unit: Any) -> tuple[Any, Any]:
        """One more lane."""
        values = self._padded([leaf.astype(jnp.float32) for leaf in leaves])
        magnitudes = jax.lax.bitcast_convert_type(values, jnp.int32) & np.int32(0x7FFFFFFF)
        top = magnitudes.max(axis=1)
        bad, used = top >= 0x7F800000, top >= 0x00800000
        # S, rounded up to COARSE bits: what lies above its digit's lowest place, from mantissa and exponent.
        exponent = (top >> 23) - 1
        digit = exponent // self._octaves
        shift = exponent - digit * self._octaves - 20
        mantissa = top & 0x007FFFFF | 0x00800000
        down = jnp.maximum(-shift, 0)
        amount = jnp.where(shift >= 0, mantissa << jnp.maximum(shift, 0), mantissa + (1 << down) - 1 >> down)
        column = jnp.where(bad, self._digits, jnp.where(used, digit, -1))[:, None]
        more = jnp.where(jnp.arange(self._digits + 1) == column, jnp.where(bad, 1, amount)[:, None], 0)
        # A block that does not fit its grid adds nothing: S will tell, and the round is void.
        largest = jax.lax.bitcast_convert_type(top, jnp.float32)
        fits = used & ~bad & (per_unit != 0) & (largest * per_unit < np.float32(2.0**31))
        units = jnp.where(fits[:, None], jnp.rint(values * per_unit[:, None]), np.float32(0)).astype(jnp.int32)
        return whole + units, notes + more.astype(jnp.int32)

    def _flat(self, whole: Any, notes: Any) -> Any:
        """The wire."""
        rows = self._slices(whole)
        found = [part.reshape(-1)[: leaf.size] for leaf, part in zip(self.layout.leaves, rows, strict=True)]
        return jnp.concatenate([*found, notes.reshape(-1)])

    def _opened(self, wire: Any) -> Any:
        """The integers of a wire, in rows."""
        bounds = self.layout.bounds.tolist()
        return self._padded([wire[begin:end] for begin, end in pairwise(bounds)])

    def _values(self, whole: Any, unit: Any) -> list[Any]:
        """From integers back to float32: rounded once, to nearest even."""
        rows = self._slices(whole.astype(jnp.float32) * unit[:, None])
        return [
            part.reshape(-1)[: leaf.size].reshape(leaf.shape)
            for leaf, part in zip(self.layout.leaves, rows, strict=True)
        ]

    def _slices(self, rows: Any) -> list[Any]:
        ends = np.cumsum(self._rows).tolist()
        return [rows[end - count : end] for count, end in zip(self._rows, ends, strict=True)]
