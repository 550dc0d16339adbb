"""Trees as JAX sees them: any registered container (flax, equinox, optax, dataclasses), not only dicts and lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from meshmend.errors import JobError

_names: dict[Any, list[str]] = {}
"""The names of leaves by the shape of their tree: naming hundreds takes longer than a device needs for a small step."""
MOST_SHAPES = 64


def leaves_of(tree: Any) -> list[tuple[str, Any]]:
    """The leaves of a tree by name, in JAX's order."""
    try:
        leaves, shape = jax.tree_util.tree_flatten(tree)
        names = _named(tree, shape)
    except (TypeError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise JobError(f"JAX cannot flatten this tree ({reason}); use dicts whose keys are all of one type") from None
    found = list(zip(names, leaves, strict=True))
    if jax.process_count() > 1:
        _check_addressable(found)
    return found


def _check_addressable(leaves: list[tuple[str, Any]]) -> None:
    """Refuse an array of which other processes hold a part: no worker could hand that over when they die."""
    for name, leaf in leaves:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            raise JobError(
                f"leaf {name!r} is spread over the devices of {jax.process_count()} processes; build its mesh from "
                "jax.local_devices(), and let the job sum over workers"
            )


def _named(tree: Any, shape: Any) -> list[str]:
    try:
        found = _names.get(shape)
    except TypeError:  # a container with something in it that has no hash
        return _names_in(tree)
    if found is None:
        if len(_names) >= MOST_SHAPES:
            _names.clear()
        found = _names[shape] = _names_in(tree)
    return found


def _names_in(tree: Any) -> list[str]:
    return [".".join(map(_word, path)) or "value" for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def _word(key: Any) -> str:
    """One step of a path, named as in trees without JAX, because it may be loaded in the middle of a job."""
    return str(next(getattr(key, name) for name in ("key", "idx", "name") if hasattr(key, name)))


def rebuilt(tree: Any, values: Sequence[Any]) -> Any:
    """A tree of the same shape with other leaves."""
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(tree), values)


def placed(like: Any, value: Any) -> Any:
    """Return an array placed like another one of its shape, if that is on several devices; otherwise unchanged."""
    if not isinstance(like, jax.Array) or np.shape(value) != like.shape or len(like.sharding.device_set) == 1:
        return value
    return jax.device_put(np.array(value), like.sharding)


def copied(like: Any, value: Any) -> Any:
    """A copy of an array of the host where another one of its shape lies, if that is JAX's; otherwise as it is."""
    return jax.device_put(np.array(value), like.sharding) if isinstance(like, jax.Array) else value


def key_of(seed: int, *numbers: int) -> Any:
    """A key of `jax.random` that depends on all of these."""
    key = jax.random.key(seed)
    for number in numbers:
        key = jax.random.fold_in(key, number)
    return key


def is_immutable(value: Any) -> bool:
    """Whether a leaf never changes: then a view is as good as a copy, and keeps the array from being donated."""
    return isinstance(value, jax.Array)
