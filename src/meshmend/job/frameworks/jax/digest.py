"""The digest of `state/digest.py`, taken by JAX where the arrays lie, and fetched when it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from meshmend.job.state.digest import FIRST, GOLDEN, SECOND, SEED, sums_of_each

WIDTHS = {1: jnp.uint8, 2: jnp.uint16}


def groups_of(leaves: Sequence[Any]) -> list[list[int]]:
    """Which leaves a program can take together: it runs on one set of devices. Those of the host are one group too."""
    groups: dict[Any, list[int]] = {}
    for number, leaf in enumerate(leaves):
        groups.setdefault(_devices(leaf), []).append(number)
    return list(groups.values())


def sums_begun(leaves: Sequence[Any], groups: list[list[int]] | None = None) -> list[tuple[list[int], Any]]:
    """Begin to compute the sums of these leaves: which ones, and an array with a row for each of them.

    Leaves on the host are summed there and then.
    """
    begun = []
    for numbers in groups_of(leaves) if groups is None else groups:
        if _devices(leaves[numbers[0]]) is None:
            found = sums_of_each([np.asarray(leaves[number]) for number in numbers])
        else:
            found = _sums([leaves[number] for number in numbers])
            found.copy_to_host_async()
        begun.append((numbers, found))
    return begun


def sums_fetched(begun: list[tuple[list[int], Any]]) -> npt.NDArray[np.uint32]:
    """Wait for the sums, with a row for each leaf."""
    out = np.zeros((sum(len(numbers) for numbers, _ in begun), 2), np.uint32)
    for numbers, found in begun:
        out[numbers] = np.asarray(found)
    return out


def _devices(leaf: Any) -> Any:
    """The devices of a leaf; None where it is no array of JAX, or has numbers of less than a byte."""
    if not isinstance(leaf, jax.Array) or not leaf.is_fully_addressable:
        return None
    packed = jnp.issubdtype(leaf.dtype, np.number) and np.dtype(leaf.dtype).kind not in "iufc"
    if packed and leaf.dtype.name != "bfloat16" and not leaf.dtype.name.startswith("float8"):
        return None
    return frozenset(leaf.sharding.device_set)


@jax.jit
def _sums(leaves: list[Any]) -> Any:
    return jnp.stack([_sum(leaf) for leaf in leaves])


def _sum(leaf: Any) -> Any:
    words = _words(leaf)
    key = jax.lax.iota(jnp.uint32, words.size) * np.uint32(GOLDEN) + np.uint32(SEED)
    x = words ^ key
    x = (x ^ x >> np.uint32(16)) * np.uint32(FIRST)
    x = (x ^ x >> np.uint32(15)) * np.uint32(SECOND)
    one, two = x ^ x >> np.uint32(16), x * (key | np.uint32(1))
    return jnp.stack([jnp.sum(one, dtype=jnp.uint32), jnp.sum(two, dtype=jnp.uint32)])


def _words(leaf: Any) -> Any:
    """The bits of an array as 32-bit words."""
    if leaf.dtype == jnp.bool_:
        leaf = leaf.astype(jnp.uint8)
    if jnp.iscomplexobj(leaf):
        leaf = jnp.stack([leaf.real, leaf.imag], axis=-1)
    leaf = leaf.reshape(-1)
    width = leaf.dtype.itemsize
    if width >= 4:
        return jax.lax.bitcast_convert_type(leaf, jnp.uint32).reshape(-1)
    small = jax.lax.bitcast_convert_type(leaf, WIDTHS[width])
    small = jnp.pad(small, (0, -len(small) % (4 // width)))
    return jax.lax.bitcast_convert_type(small.reshape(-1, 4 // width), jnp.uint32)
