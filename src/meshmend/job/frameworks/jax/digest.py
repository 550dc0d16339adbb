"""The digest of `state/digest.py`, computed by JAX where the arrays are, and fetched when it is needed.

Of an array on several devices, each takes the sums of its own shard with the places that its numbers have in the whole
array. The host adds them up, every number once: the digest is that of the same bits on one device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from meshmend.job.frameworks.jax import host
from meshmend.job.frameworks.jax.shards import DeviceGroup, Spread, group_of
from meshmend.job.state.digest import FIRST, GOLDEN, SECOND, SEED, sums_of_each

WIDTHS = {1: jnp.uint8, 2: jnp.uint16}

Fetch = Callable[[], npt.NDArray[np.uint32]]
Begin = Callable[[list[Any]], Fetch]
"""Begins to compute the sums of some leaves; what it returns waits for them, with a row for each."""


def programs_of(leaves: Sequence[Any]) -> list[tuple[list[int], Begin]]:
    """Which leaves can be taken together, and how: a program runs on one set of devices, others on the host."""
    groups: dict[Any, list[int]] = {}
    for number, leaf in enumerate(leaves):
        groups.setdefault(_devices(leaf), []).append(number)
    return [(numbers, _program(devices, leaves, numbers)) for devices, numbers in groups.items()]


def sums_begun(leaves: Sequence[Any], programs: list[tuple[list[int], Begin]]) -> Fetch:
    """Begin to compute the sums of these leaves; leaves on the host are summed there and then."""
    begun = [(numbers, begin([leaves[number] for number in numbers])) for numbers, begin in programs]

    def fetch() -> npt.NDArray[np.uint32]:
        out = np.zeros((len(leaves), 2), np.uint32)
        for numbers, fetch_some in begun:
            out[numbers] = fetch_some()
        return out

    return fetch


def _program(devices: Any, leaves: Sequence[Any], numbers: list[int]) -> Begin:
    if devices is None:
        return _on_host
    return _on_one if len(devices) == 1 else _on_several(group_of(leaves, numbers), [leaves[one] for one in numbers])


def _on_host(leaves: list[Any]) -> Fetch:
    found = sums_of_each([host.fetch(leaf) for leaf in leaves])
    return lambda: found


def _on_one(leaves: list[Any]) -> Fetch:
    found = _sums(leaves)
    found.copy_to_host_async()
    return lambda: np.asarray(found)


def _on_several(group: DeviceGroup, leaves: Sequence[Any]) -> Begin:
    units = [(np.dtype(leaf.dtype).itemsize, 4) if _is_cut(leaf) else (1, 1) for leaf in leaves]
    begins = group.begins(units)
    owned = np.zeros((group.mesh.size, len(leaves), 1), np.uint32)
    for number, spread in enumerate(group.spreads):
        owned[spread.owners, number] = 1

    def shards(leaves: list[Any], begins: Any) -> Any:
        rows = [
            _sum(leaf, _places(spread, begins[0, number], unit))
            for number, (leaf, spread, unit) in enumerate(zip(leaves, group.spreads, units, strict=True))
        ]
        return jnp.stack(rows)[None]

    program = group.program(shards, (group.specs, group.each), group.each)

    def begin(leaves: list[Any]) -> Fetch:
        found = program(group.taken(leaves), begins)
        found.copy_to_host_async()
        return lambda: np.sum(np.asarray(found) * owned, axis=0, dtype=np.uint32)

    return begin


def _places(spread: Spread, begin: Any, unit: tuple[int, int]) -> Any:
    """The places of the words of a shard; None where the shard is the whole array."""
    return None if spread.last is None else spread.places(begin, unit)


def _is_cut(leaf: Any) -> bool:
    return not leaf.sharding.is_fully_replicated


def _devices(leaf: Any) -> Any:
    """Return the devices of a leaf; None if the host computes the sums.

    The host does that for a leaf that is not a JAX array or has numbers of less than a byte, or has narrow numbers and
    is cut in the middle of words.
    """
    if not isinstance(leaf, jax.Array):
        return None
    packed = jnp.issubdtype(leaf.dtype, np.number) and np.dtype(leaf.dtype).kind not in "iufc"
    if packed and leaf.dtype.name != "bfloat16" and not leaf.dtype.name.startswith("float8"):
        return None
    devices = frozenset(leaf.sharding.device_set)
    if len(devices) > 1 and leaf.dtype.itemsize < 4 and _is_cut(leaf):
        run = group_of([leaf], [0]).spreads[0].run
        return None if run * leaf.dtype.itemsize % 4 else devices
    return devices


@jax.jit
def _sums(leaves: list[Any]) -> Any:
    return jnp.stack([_sum(leaf) for leaf in leaves])


def _sum(leaf: Any, places: Any = None) -> Any:
    words = _words(leaf)
    places = jax.lax.iota(jnp.uint32, words.size) if places is None else places
    key = places * np.uint32(GOLDEN) + np.uint32(SEED)
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
