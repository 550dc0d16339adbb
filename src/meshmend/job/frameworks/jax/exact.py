"""Exact sums on the device: the arithmetic of `reduction/exact.py`, bit for bit, compiled by JAX.

Lanes are rounded to the grid and added as integers where they are. The grid moves there too (`DeviceGrid`), by the
notes of the total: the host gets a word that says whether the round is good, and the levels, two bytes a block.

Every leaf is filled up with zeros to whole blocks, so that a lane is one array of rows:

    padded    │ leaf 0, row after row │ 0 0 │ leaf 1 │ 0 │ …        [blocks, 1024]
    wire      │ leaf 0 │ leaf 1 │ … │ notes │

There are no 64-bit numbers in a lane: the coarse digits of S are taken from the bits of the largest number of a block.
The rules by which the grid moves are about float64, which JAX has where it is asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshmend.job.frameworks.jax import host
from meshmend.job.reduction import exact as rules
from meshmend.job.reduction.exact import BLOCK, FALL, FRESH, Exact, ExactResult
from meshmend.job.reduction.layout import Layout

FLOAT64 = ("cpu", "gpu", "cuda", "rocm")
"""Platforms whose float64 is that of IEEE 754; elsewhere the host judges."""


class DeviceGrid:
    """The grid of an `Exact` on the device: the same rules, and the same levels on the host after every round."""

    def __init__(self, exact: Exact, place: host.Destination) -> None:
        self.exact, self._place = exact, place
        self._known: Any = None  # the levels of the host that those on the device are
        self._level: Any = None
        self._factors: Any = None
        self._leaf_of = place.upload_flat(exact.leaf_of.astype(np.int32))
        self._move = jax.jit(self._moved)

    @property
    def factors(self) -> tuple[Any, Any]:
        """As `Exact.factors`, on the device."""
        if self._known is not self.exact.level:
            self._known = self.exact.level
            self._level, *factors = map(self._place.upload_flat, (self.exact.level, *self.exact.factors))
            self._factors = tuple(factors)
        return self._factors  # type: ignore[no-any-return]

    def judge_begun(self, notes: Any) -> Callable[[], ExactResult | None]:
        """As `Exact.judge`; what is returned waits for it."""
        exact = self.exact
        if not isinstance(notes, jax.Array) or not all(one.platform in FLOAT64 for one in notes.devices()):
            return lambda: exact.judge(np.asarray(notes))
        assert self.factors is not None, "the levels are there now"
        with jax.enable_x64(True):
            found, level, factors = self._move(notes, self._level, self._leaf_of)
        fetch = host.begin(found)

        def judged() -> ExactResult | None:
            word = fetch()
            if word[0] == rules.BAD:
                return exact.judge(np.asarray(notes))
            exact.move(word[1:].astype(np.int32))
            self._known, self._level, self._factors = exact.level, level, factors
            return None if word[0] == rules.GOOD else ExactResult(None)

        return judged

    def _moved(self, notes: Any, level: Any, leaf_of: Any) -> tuple[Any, Any, tuple[Any, Any]]:
        """`Exact.judge` line by line: the verdict and the levels in a row, and the new grid."""
        spread = jnp.zeros(len(level), jnp.float64)
        for column, worth in enumerate(self.exact.worth):
            spread += notes[:, column].astype(jnp.float64) * worth
        bad = (notes[:, -1] != 0) | (spread >= rules.MOST)
        bits = jax.lax.bitcast_convert_type(spread, jnp.int64)
        used = spread > 0
        need = jnp.clip((bits >> 52).astype(jnp.int32) - (1022 + 31 - rules.HEADROOM), rules.LOW, rules.HIGH) * FALL
        need = jnp.where(used, need, FRESH)
        top = self._largest(need, leaf_of)
        # Numbers that are not negative compare as their bits do. A fresh block's limit is far below all but 0.
        limit = (level + (FALL - 1)) >> rules.OCTAVE
        small = bits >= (limit.astype(jnp.int64) << 52) + rules.ROOM_BITS
        up = jnp.where(self._largest(small.astype(jnp.int32), leaf_of) > 0, jnp.maximum(level, top), level)
        fall = jnp.where(top == FRESH, 0, jnp.clip(level - top, used.astype(jnp.int32), FALL))
        redo = small.any()
        new = jnp.where(redo, up, jnp.maximum(level - fall, need))
        verdict = jnp.where(bad.any(), rules.BAD, jnp.where(redo, rules.REDO, rules.GOOD))
        words = jnp.concatenate([verdict[None], new]).astype(jnp.int16)
        shifted, one = ((new + (FALL - 1)) >> rules.OCTAVE) << 23, np.int32(127 << 23)  # exponents of float32, and 1.0
        factors = [jnp.where(new == FRESH, 0, each) for each in (one - shifted, one + shifted)]
        on, off = (jax.lax.bitcast_convert_type(each.astype(jnp.int32), jnp.float32) for each in factors)
        return words, new, (on, off)

    def _largest(self, values: Any, leaf_of: Any) -> Any:
        """The largest value of each block's leaf."""
        leaves = len(self.exact.leaves)
        return jax.ops.segment_max(values, leaf_of, leaves, indices_are_sorted=True)[leaf_of]


def magnitudes(values: Any) -> Any:
    """Floats without their sign, as integers that compare as they do; NaN is just a large one."""
    return jax.lax.bitcast_convert_type(values, jnp.int32) & np.int32(0x7FFFFFFF)


def notes_of(top: Any, digits: int, octaves: int) -> Any:
    """The notes of one lane, given the largest magnitude in each block."""
    bad, used = top >= 0x7F800000, top >= 0x00800000
    # S, rounded up to COARSE bits: what lies above its digit's lowest place, from mantissa and exponent.
    exponent = (top >> 23) - 1
    digit = exponent // octaves
    shift = exponent - digit * octaves - 20
    mantissa = top & 0x007FFFFF | 0x00800000
    down = jnp.maximum(-shift, 0)
    amount = jnp.where(shift >= 0, mantissa << jnp.maximum(shift, 0), mantissa + (1 << down) - 1 >> down)
    column = jnp.where(bad, digits, jnp.where(used, digit, -1))[:, None]
    return jnp.where(jnp.arange(digits + 1) == column, jnp.where(bad, 1, amount)[:, None], 0).astype(jnp.int32)


def rounded(values: Any, top: Any, per_unit: Any) -> Any:
    """Rows of numbers on the grid: for each row, the largest magnitude in its block and the factor of that block.

    A block that does not fit its grid adds nothing: S will tell, and the round is void.
    """
    largest = jax.lax.bitcast_convert_type(top, jnp.float32)
    normal = (top >= 0x00800000) & (top < 0x7F800000)
    fits = normal & (per_unit != 0) & (largest * per_unit < np.float32(2.0**31))
    return jnp.where(fits[:, None], jnp.rint(values * per_unit[:, None]), np.float32(0)).astype(jnp.int32)


class ExactWire:
    """The sum of a worker's lanes as integers on the grid, and its notes."""

    def __init__(self, layout: Layout, exact: Exact, place: host.Destination) -> None:
        self.layout, self.grid = layout, DeviceGrid(exact, place)
        self._rows = [-(-leaf.size // BLOCK) for leaf in layout.leaves]
        self._digits, self._octaves = exact.digits
        self.first = jax.jit(self._first)
        self.add_in_place = jax.jit(self._add, donate_argnums=(0, 1))
        self.flat = jax.jit(self._flat)
        self.opened = jax.jit(self._opened)
        self.values = jax.jit(self._values)

    def _padded(self, leaves: Sequence[Any]) -> Any:
        flat = [leaf.reshape(-1) for leaf in leaves]
        return jnp.concatenate([jnp.pad(one, (0, -len(one) % BLOCK)).reshape(-1, BLOCK) for one in flat])

    def _add(self, whole: Any, notes: Any, leaves: Sequence[Any], per_unit: Any) -> tuple[Any, Any]:
        """One more lane."""
        units, more = self._first(leaves, per_unit)
        return whole + units, notes + more

    def _first(self, leaves: Sequence[Any], per_unit: Any) -> tuple[Any, Any]:
        """One lane."""
        values = self._padded([leaf.astype(jnp.float32) for leaf in leaves])
        top = magnitudes(values).max(axis=1)
        return rounded(values, top, per_unit), notes_of(top, self._digits, self._octaves)

    def _flat(self, whole: Any, notes: Any) -> Any:
        """The wire."""
        rows = self._slices(whole)
        found = [part.reshape(-1)[: leaf.size] for leaf, part in zip(self.layout.leaves, rows, strict=True)]
        return jnp.concatenate([*found, notes.reshape(-1)])

    def _opened(self, wire: Any) -> tuple[Any, Any]:
        """The integers of a wire, in rows, and its notes."""
        bounds = self.layout.bounds.tolist()
        rows = self._padded([wire[begin:end] for begin, end in pairwise(bounds)])
        return rows, wire[bounds[-1] :].reshape(-1, self._digits + 1)

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
