"""The model of both loops: a network of 25 or 100 MB in six leaves or more of different sizes, in numpy or in JAX.

Both loops use the same data, the same lanes, `gradient` for each lane and `update` for each step, so they differ only
in how the gradients of four processes become one sum.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

WIDTHS = {1: [784, 256, 10], 25: [784, 1600, 1600, 1200, 400, 10], 100: [784, 3200, 3600, 2400, 900, 10]}
LANES = 8
LANE_SIZE = {1: 16, 25: 24, 100: 16}
RATE = 0.001
ENDLESS = 10**9
"""The loops go on until they are ended."""


class Clock:
    """Writes a line for each step: when it began and ended, and what of it went into lanes and into the update."""

    def __init__(self, path: str) -> None:
        self.out = open(path, "a", buffering=1) if first() else None  # noqa: SIM115
        self.begin = self.lanes = self.updates = 0.0

    def step(self) -> None:
        """A step begins, so the last one has ended."""
        now = time.monotonic()
        if self.begin and self.out:
            print(self.begin, now, self.lanes, self.updates, file=self.out)
        self.begin, self.lanes, self.updates = now, 0.0, 0.0

    def lane(self, function: Callable[..., Any], *args: Any) -> Any:
        """Compute a lane."""
        begin = time.monotonic()
        out = function(*args)
        self.lanes += time.monotonic() - begin
        return out

    def update(self, function: Callable[..., Any], *args: Any) -> Any:
        """Do the update."""
        begin = time.monotonic()
        out = function(*args)
        self.updates += time.monotonic() - begin
        return out


def data() -> tuple[Any, Any]:
    """Samples and their classes."""
    random = np.random.default_rng(1)
    y = random.integers(0, 10, 4096)
    return random.normal(size=(4096, 784)).astype(np.float32) + y[:, None].astype(np.float32) / 10, y


def initial(size: int) -> dict[str, Any]:
    """The weights before the first step."""
    random = np.random.default_rng(2)
    state: dict[str, Any] = {}
    for layer, (n, m) in enumerate(zip(WIDTHS[size][:-1], WIDTHS[size][1:], strict=True)):
        state[f"w{layer}"] = (random.normal(size=(n, m)) * np.sqrt(2 / n)).astype(np.float32)
        state[f"b{layer}"] = np.zeros(m, np.float32)
    return state


def numpy_gradient(state: dict[str, Any], lane: tuple[Any, Any]) -> tuple[dict[str, Any], Any]:
    """Gradients and loss of a lane, summed over its samples."""
    x, y = lane
    layers = len(state) // 2
    values = [x]
    for layer in range(layers):
        x = x @ state[f"w{layer}"] + state[f"b{layer}"]
        values.append(np.maximum(x, 0) if layer < layers - 1 else x)
    z = values[-1] - values[-1].max(1, keepdims=True)
    p = np.exp(z)
    p /= p.sum(1, keepdims=True)
    here = np.arange(len(y))
    loss = -np.log(p[here, y]).sum()
    p[here, y] -= 1
    grads = {}
    for layer in reversed(range(layers)):
        grads[f"w{layer}"] = values[layer].T @ p
        grads[f"b{layer}"] = p.sum(0)
        if layer:
            p = (p @ state[f"w{layer}"].T) * (values[layer] > 0)
    return grads, loss


def numpy_update(state: dict[str, Any], grads: dict[str, Any], batch: int) -> dict[str, Any]:
    """One step down the gradient."""
    rate = np.float32(RATE / batch)
    return {name: value - rate * grads[name] for name, value in state.items()}


def jax_functions() -> tuple[Any, Any]:
    """The same two in JAX, compiled."""
    import jax
    import jax.numpy as jnp

    def loss(state: Any, lane: Any) -> Any:
        x, y = lane
        layers = len(state) // 2
        for layer in range(layers):
            x = x @ state[f"w{layer}"] + state[f"b{layer}"]
            x = jnp.maximum(x, 0) if layer < layers - 1 else x
        return -jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], 1).sum()

    value_and_grad = jax.jit(jax.value_and_grad(loss))
    step = jax.jit(lambda state, grads, rate: jax.tree.map(lambda p, g: p - rate * g, state, grads))

    def gradient(state: Any, lane: Any) -> Any:
        value, grads = value_and_grad(state, lane)
        return jax.block_until_ready((grads, value))

    def update(state: Any, grads: Any, batch: int) -> Any:
        return jax.block_until_ready(step(state, grads, np.float32(RATE / batch)))

    return gradient, update


def functions(framework: str) -> tuple[Any, Any]:
    """(gradient, update)."""
    return jax_functions() if framework == "jax" else (numpy_gradient, numpy_update)


def arguments() -> tuple[str, int, str, str, int]:
    """(framework, size in MB, kind, where to write the times, how many workers)."""
    framework, size, kind, out, workers = sys.argv[1:]
    return framework, int(size), kind, out, int(workers)


def first() -> bool:
    """Whether this is the process that writes the times."""
    return os.environ.get("MESHMEND_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "0"
