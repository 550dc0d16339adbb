"""Trees as JAX sees them: any registered container (flax, equinox, optax, dataclasses), not only dicts and lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from meshmend.errors import JobError


def leaves_of(tree: Any) -> list[tuple[str, Any]]:
    """The leaves of a tree by name, in JAX's order."""
    try:
        found = jax.tree_util.tree_leaves_with_path(tree)
    except (TypeError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise JobError(f"JAX cannot take this tree apart ({reason}); use dicts whose keys have one type") from None
    return [(".".join(map(_word, path)) or "value", leaf) for path, leaf in found]


def _word(key: Any) -> str:
    """One step of a path, named as in trees without JAX, because it may be loaded in the middle of a job."""
    return str(next(getattr(key, name) for name in ("key", "idx", "name") if hasattr(key, name)))


def rebuilt(tree: Any, values: Sequence[Any]) -> Any:
    """A tree of the same shape with other leaves."""
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(tree), values)


def key_of(seed: int, *numbers: int) -> Any:
    """A key of `jax.random` that depends on all of these."""
    key = jax.random.key(seed)
    for number in numbers:
        key = jax.random.fold_in(key, number)
    return key


def is_immutable(value: Any) -> bool:
    """Whether a leaf never changes: then a view is as good as a copy, and keeps the array from being donated."""
    return isinstance(value, jax.Array)
