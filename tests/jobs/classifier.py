"""A JAX training script for tests, as a user would write it."""

import hashlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import meshmend as mm

TRACES = 0


class State(NamedTuple):
    weights: dict
    momentum: dict
    step: jax.Array


def loss(weights: dict, lane: dict) -> jax.Array:
    global TRACES
    TRACES += 1
    hidden = jnp.tanh(lane["x"] @ weights["in"] + weights["bias"])
    logits = hidden @ weights["out"]
    return -jnp.sum(jax.nn.log_softmax(logits)[jnp.arange(len(lane["y"])), lane["y"]])


gradient = jax.jit(jax.value_and_grad(loss))


@jax.jit
def update(state: State, grads: dict) -> State:
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g / 64, state.momentum, grads)
    weights = jax.tree.map(lambda w, m: w - 0.1 * m, state.weights, momentum)
    return State(weights, momentum, state.step + 1)


def main() -> None:
    random = np.random.default_rng(1)
    data = {"x": random.normal(size=(600, 12)).astype(np.float32), "y": random.integers(0, 5, 600)}
    weights = {
        "in": jnp.asarray(random.normal(size=(12, 32)).astype(np.float32)),
        "bias": jnp.zeros(32),
        "out": jnp.asarray(random.normal(size=(32, 5)).astype(np.float32)),
    }
    first = State(weights, jax.tree.map(jnp.zeros_like, weights), jnp.zeros((), jnp.int32))
    with mm.Job(data, batch=64, lanes=8, reduction="exact") as job:
        state = job.share(first)
        for _ in job.steps(12):
            value, grads = job.sum(lambda lane, state=state: gradient(state.weights, lane))
            state = update(state, grads)
            job.commit(state, loss=value / job.batch)
        flat = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state))
        print(f"loss {value / job.batch:.4f} traces {TRACES}")
        print(f"weights {hashlib.sha256(flat).hexdigest()} after {int(state.step)}", flush=True)


if __name__ == "__main__":
    main()
