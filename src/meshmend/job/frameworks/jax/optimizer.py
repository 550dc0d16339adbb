"""A transformation of optax as an optimizer of slices, compiled once for slices of one length.

The last bits of what XLA computes depend on how long an array is. So all slices are padded to the length of the
longest: then the bits of a slice are the same whoever holds it, and with any number of workers. It runs on the host,
where the weights and the sums are, and is compiled before its worker counts as ready.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class PaddedOptimizer:
    """Anything with `init(params)` and `update(grads, state, params)`, on arrays of one length."""

    def __init__(self, transformation: Any, length: int) -> None:
        self._length = length
        self._host = jax.local_devices(backend="cpu")[0]

        def step(weights: Any, gradients: Any, state: Any) -> tuple[Any, Any]:
            updates, state = transformation.update(gradients, state, weights)
            return weights + jnp.asarray(updates, weights.dtype), state

        self._init, self._step = jax.jit(transformation.init), jax.jit(step)
        nothing = np.zeros(length, np.float32)
        self.update(nothing, nothing, self.init(nothing))

    def init(self, weights: Floats) -> Any:
        """What it remembers of a slice at the beginning."""
        with jax.default_device(self._host):
            return self._init(self._padded(weights))

    def update(self, weights: Floats, gradients: Floats, state: Any) -> tuple[Floats, Any]:
        """The new weights of a slice, and what it remembers of them."""
        with jax.default_device(self._host):
            new, state = self._step(self._padded(weights), self._padded(gradients), state)
            return np.asarray(new)[: len(weights)], state

    def _padded(self, values: Floats) -> Floats:
        out = np.zeros(self._length, np.float32)
        out[: len(values)] = values
        return out


class ShapedOptimizer:
    """The same on whole tensors, compiled for each shape."""

    def __init__(self, transformation: Any) -> None:
        self._host = jax.local_devices(backend="cpu")[0]

        def step(weights: Any, gradients: Any, state: Any) -> tuple[Any, Any]:
            updates, state = transformation.update(gradients, state, weights)
            return weights + jnp.asarray(updates, weights.dtype), state

        self._init, self._step = jax.jit(transformation.init), jax.jit(step)

    def init(self, weights: Floats) -> Any:
        """What it remembers of a tensor at the beginning."""
        with jax.default_device(self._host):
            return self._init(weights)

    def update(self, weights: Floats, gradients: Floats, state: Any) -> tuple[Floats, Any]:
        """The new weights of a tensor, and what it remembers of them."""
        with jax.default_device(self._host):
            new, state = self._step(weights, gradients, state)
            return np.asarray(new), state
