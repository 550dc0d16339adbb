"""Two devices per chip, as TPU v3, v4 and TPU7x show: each sums one half of the payload over the mesh.

A core gets the other's part of its own half, sums that half with the same core of all other chips, and then the two
exchange results. Halves move in pieces, so that only pieces are held twice. They are whole tiles and may overlap; what
both have summed is taken from the second, so that both cores end with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

PIECES = 8
TILE = 1024


def sum_by_halves(flat: jax.Array, summed: Callable[[jax.Array], jax.Array], axis: str) -> jax.Array:
    """The sum of `flat` over all devices of an axis, which lie chip by chip; `summed` sums over the chips."""
    permute: Any = lax.ppermute
    size, pieces = flat.size, PIECES if flat.size >= 2 * PIECES * TILE else 1
    swap = [(device, device ^ 1) for device in range(lax.axis_size(axis))]
    half = -(-size // 2)
    half += -half % (pieces * TILE if pieces > 1 else 1)
    piece, first = half // pieces, lax.axis_index(axis) % 2 == 0
    mine_from, other_from = jnp.where(first, 0, size - half), jnp.where(first, size - half, 0)

    def add(i: Any, mine: jax.Array) -> jax.Array:
        got = permute(lax.dynamic_slice(flat, [other_from + i * piece], [piece]), axis, swap)
        return lax.dynamic_update_slice(mine, lax.dynamic_slice(mine, [i * piece], [piece]) + got, [i * piece])

    mine = lax.fori_loop(0, pieces, add, lax.dynamic_slice(flat, [mine_from], [half]))
    mine = summed(mine)

    def join(i: Any, both: jax.Array) -> jax.Array:
        got = permute(lax.dynamic_slice(mine, [i * piece], [piece]), axis, swap)
        return lax.dynamic_update_slice(both, got, [other_from + i * piece])

    both = lax.dynamic_update_slice(jnp.zeros_like(flat), mine, [mine_from])
    both = lax.fori_loop(0, pieces, join, both)
    if shared := 2 * half - size:
        seconds = jnp.where(first, both[size - half : half], mine[:shared])
        both = lax.dynamic_update_slice(both, seconds, [size - half])
    return both
