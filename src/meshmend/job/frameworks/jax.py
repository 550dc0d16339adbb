"""Trees as JAX sees them: any registered container (flax, equinox, optax, dataclasses), not only dicts and lists."""

from __future__ import annotations

from typing import Any

import jax

from meshmend.errors import JobError


def leaves_of(tree: Any) -> list[tuple[str, Any]]:
    """The arrays of a tree with their names, in JAX's order."""
    try:
        found = jax.tree_util.tree_leaves_with_path(tree)
    except (TypeError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise JobError(f"JAX cannot take this tree apart ({reason}): give dicts whose keys are of one type") from None
    return [(".".join(map(_word, path)) or "value", leaf) for path, leaf in found]


def _word(key: Any) -> str:
    """One step of a path, called as in trees without JAX: it may be loaded in the middle of a job."""
    return str(next(getattr(key, name) for name in ("key", "idx", "name") if hasattr(key, name)))


def rebuilt(tree: Any, values: list[Any]) -> Any:
    """A tree of the same shape with other arrays, each on the device and of the type that JAX would give it."""
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(tree), values)
