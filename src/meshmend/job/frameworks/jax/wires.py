"""How the sums of a worker's lanes become a message on the device, and a message sums, for each kind of reduction.

    float32   leaf after leaf                                           `reduction/float32.py`
    bf16      large leaves rounded, two in the space of one float32     `reduction/bf16.py`

Bit for bit what those files do on the host. Exact sums are in `exact.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshmend.job.frameworks.jax import host
from meshmend.job.reduction.bf16 import travels_as_bf16
from meshmend.job.reduction.layout import Layout, Leaf


def added(sums: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
    """Sums and one more lane."""
    return [mine + leaf.astype(jnp.float32) for mine, leaf in zip(sums, leaves, strict=True)]


add = jax.jit(added)
add_in_place = jax.jit(added, donate_argnums=0)


@jax.jit
def widened(leaves: Sequence[Any]) -> list[Any]:
    """Leaves as float32."""
    return [leaf.astype(jnp.float32) for leaf in leaves]


class Rooms:
    """New arrays for the sums of a layout, where its lanes are."""

    def __init__(self, layout: Layout, place: host.Destination) -> None:
        self._shapes = tuple((leaf.size, leaf.shape) for leaf in layout.leaves)
        self._place, self._zero = place, None

    def made(self) -> list[Any]:
        """Have the device make them; they hold zeros."""
        if self._zero is None:
            self._zero = self._place.upload_flat(np.zeros((), np.float32))
        found: list[Any] = _rooms(self._zero, self._shapes)
        return found


@partial(jax.jit, static_argnums=1)
def _rooms(zero: Any, shapes: tuple[tuple[int, tuple[int, ...]], ...]) -> list[Any]:
    """Every output of a program has memory of its own, but an output that is an input would have that one's."""
    return [jnp.broadcast_to(zero, (size,)).reshape(shape) for size, shape in shapes]


@lru_cache(maxsize=64)
def wire_of(leaves: tuple[Leaf, ...], *, packs: bool) -> FloatWire:
    """The wire of a layout: its programs are compiled once."""
    return Bf16Wire(leaves) if packs else FloatWire(leaves)


class FloatWire:
    """Leaf after leaf."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self.leaves = leaves
        self._bounds = np.cumsum([0, *(leaf.size for leaf in leaves)]).tolist()
        self.flat = jax.jit(self._flat)
        self.split = jax.jit(self._split)

    def rounded(self, sums: list[Any]) -> list[Any]:
        """Return the sums of a world of one."""
        return sums

    def _flat(self, sums: Sequence[Any]) -> Any:
        return jnp.concatenate([one.reshape(-1) for one in sums])

    def _split(self, total: Any) -> list[Any]:
        return [
            total[begin : begin + leaf.size].reshape(leaf.shape)
            for leaf, begin in zip(self.leaves, self._bounds, strict=False)
        ]


class Bf16Wire(FloatWire):
    """Large leaves first, as bf16."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        super().__init__(leaves)
        self._large = [travels_as_bf16(leaf) for leaf in leaves]
        self._round = jax.jit(lambda sums: [widened_half(half(one)) for one in sums])

    def rounded(self, sums: list[Any]) -> list[Any]:
        """Rounded once, as in a world of many."""
        large = iter(self._round([one for one, is_large in zip(sums, self._large, strict=True) if is_large]))
        return [next(large) if is_large else one for one, is_large in zip(sums, self._large, strict=True)]

    def _flat(self, sums: Sequence[Any]) -> Any:
        pairs = list(zip(sums, self._large, strict=True))
        small = [one.reshape(-1) for one, is_large in pairs if not is_large]
        large = [half(one.reshape(-1)) for one, is_large in pairs if is_large]
        if not large:
            return jnp.concatenate(small)
        halves = jnp.concatenate(large)
        halves = jnp.pad(halves, (0, len(halves) % 2)).reshape(-1, 2)
        head = jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(halves, jnp.uint32), jnp.float32)
        return jnp.concatenate([head, *small])

    def _split(self, total: Any) -> list[Any]:
        count = sum(leaf.size for leaf, large in zip(self.leaves, self._large, strict=True) if large)
        head = -(-count // 2)
        bits = jax.lax.bitcast_convert_type(total[:head], jnp.uint32)
        halves, rest = jax.lax.bitcast_convert_type(bits, jnp.uint16).reshape(-1), total[head:]
        found, at, small = [], 0, 0
        for leaf, large in zip(self.leaves, self._large, strict=True):
            if large:
                found.append(widened_half(halves[at : at + leaf.size]).reshape(leaf.shape))
                at += leaf.size
            else:
                found.append(rest[small : small + leaf.size].reshape(leaf.shape))
                small += leaf.size
        return found


def half(x: Any) -> Any:
    """Float32 as bf16, in uint16: to nearest, ties to even, and every NaN the same."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    kept = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    nan = bits & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000)
    return jnp.where(nan, np.uint32(0x7FC0), kept).astype(jnp.uint16)


def widened_half(halves: Any) -> Any:
    """The reverse; nothing is lost."""
    return jax.lax.bitcast_convert_type(halves.astype(jnp.uint32) << np.uint32(16), jnp.float32)


@jax.jit
def all_finite(total: Any) -> Any:
    """Whether a total has neither NaN nor Inf."""
    return jnp.isfinite(total).all()


@partial(jax.jit, static_argnums=1)
def finite(sums: Sequence[Any], narrow: tuple[tuple[int, Any], ...]) -> Any:
    """Whether all of each leaf is finite, and of these leaves in these types too."""
    each = [jnp.isfinite(one).all() for one in sums]
    return jnp.stack([*each, *(jnp.isfinite(sums[number].astype(dtype)).all() for number, dtype in narrow)])


@jax.jit
def largest(leaves: Sequence[Any], before: Any) -> Any:
    """The largest magnitude of each leaf of integers, and of those seen before."""
    found = jnp.stack([jnp.max(jnp.abs(leaf.astype(jnp.float32)), initial=0) for leaf in leaves])
    return jnp.maximum(found, before)


@jax.jit
def spans(largest: Any, sums: Sequence[Any]) -> Any:
    """The largest of any lane, the least sum and the largest, of each leaf of integers."""
    low = jnp.stack([jnp.min(one, initial=0) for one in sums])
    high = jnp.stack([jnp.max(one, initial=0) for one in sums])
    return jnp.stack([largest, low, high], axis=1)
