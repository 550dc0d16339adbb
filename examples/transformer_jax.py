"""A transformer in JAX that reads Python's manual: dropout, an average of the weights, small microbatches.

    python examples/transformer_jax.py
    meshmend run -n 4 examples/transformer_jax.py

Lanes are the microbatches of gradient accumulation: 64 samples in 16 lanes of 4, of which each worker does its share.
"""

import argparse
import hashlib
import os
import pydoc_data.topics

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

import meshmend as mm

TEXT = np.frombuffer("".join(pydoc_data.topics.topics.values()).encode(), np.uint8)
LENGTH, WIDTH, HEADS, DROP = 32, 64, 4, 0.1


def init(layers: int):
    """Random weights."""
    random = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(random.normal(0, shape[0] ** -0.5, shape), jnp.float32)  # noqa: E731
    layer = lambda: {"qkv": normal(WIDTH, 3 * WIDTH), "up": normal(WIDTH, 4 * WIDTH), "down": normal(4 * WIDTH, WIDTH)}  # noqa: E731
    return {"byte": normal(256, WIDTH), "place": normal(LENGTH, WIDTH), "layers": [layer() for _ in range(layers)]}


def logits(weights, ids, key):
    """Scores of the next byte at every place."""
    norm = lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)  # noqa: E731
    keys = jax.random.split(key, 2 * len(weights["layers"]))
    drop = lambda x, at: x * jax.random.bernoulli(keys[at], 1 - DROP, x.shape) / (1 - DROP)  # noqa: E731
    x = weights["byte"][ids] + weights["place"]
    for number, layer in enumerate(weights["layers"]):
        heads = (norm(x) @ layer["qkv"]).reshape(*x.shape[:2], HEADS, 3 * WIDTH // HEADS)
        seen = jax.nn.dot_product_attention(*jnp.split(heads, 3, -1), is_causal=True)
        x += drop(seen.reshape(x.shape), 2 * number)
        x += drop(jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"], 2 * number + 1)
    return norm(x) @ weights["byte"].T


@jax.jit
@jax.value_and_grad
def loss_and_grads(weights, ids, key):
    """The loss per byte, added up over the samples of a lane."""
    guess = jax.nn.log_softmax(logits(weights, ids[:, :-1], key))
    return -jnp.take_along_axis(guess, ids[:, 1:, None], -1).sum() / LENGTH


@jax.jit
def update(state, grads):
    """Momentum, and a moving average of the weights."""
    speed = jax.tree.map(lambda v, g: 0.9 * v + g, state["speed"], grads)
    weights = jax.tree.map(lambda w, v: w - 0.05 * v, state["weights"], speed)
    ema = jax.tree.map(lambda a, w: 0.98 * a + 0.02 * w, state["ema"], weights)
    return {"weights": weights, "speed": speed, "ema": ema}


def main(steps: int, layers: int) -> None:
    """Train, then say which weights it has."""
    pieces = np.lib.stride_tricks.sliding_window_view(TEXT, LENGTH + 1)[:: LENGTH // 2][:4096].astype(np.int32)
    weights = init(layers)
    state = {"weights": weights, "speed": jax.tree.map(jnp.zeros_like, weights), "ema": weights}
    compute = lambda state, lane, draws: loss_and_grads(state["weights"], lane, draws.key)  # noqa: E731
    with mm.Job(pieces, batch=64, lanes=16, reduction="exact") as job:
        state = job.share(state, warm=compute)
        for _ in job.steps(steps):
            # `draws` are random numbers of the lane's own: whoever computes it drops the same.
            loss, grads = job.sum(lambda lane, draws: compute(state, lane, draws))  # noqa: B023
            state = update(state, jax.tree.map(lambda g: g / job.batch, grads))
            job.commit(state, loss=loss / job.batch)
    digest = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state["ema"])))
    print(f"averaged weights {digest.hexdigest()[:16]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on the text of Python's manual.")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--layers", type=int, default=2)
    main(**vars(parser.parse_args()))
