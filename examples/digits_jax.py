"""Handwritten digits in JAX: a small network with momentum. Alone, or on workers that may die:

    python examples/digits_jax.py
    meshmend run -n 4 examples/digits_jax.py

Both end with the same weights, bit for bit.
"""

import argparse
import hashlib
import os
from itertools import pairwise

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import meshmend as mm

TEST = 360  # of 1797 samples


def load():
    """Images and labels, shuffled once."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return (images[order] / 16).astype(np.float32), labels[order].astype(np.int32)


def init(widths=(64, 128, 64, 10)):
    """Random weights, scaled by how many inputs are added up."""
    random = np.random.default_rng(1)
    pairs = list(pairwise(widths))
    return [(jnp.asarray(random.normal(0, (2 / m) ** 0.5, (m, n)), jnp.float32), jnp.zeros(n)) for m, n in pairs]


def logits(weights, x):
    """Dense layers with a ramp between them."""
    for w, b in weights[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = weights[-1]
    return x @ w + b


@jax.jit
@jax.value_and_grad
def loss_and_grads(weights, lane):
    """The loss of a lane, added up over its samples, and its gradient."""
    x, y = lane
    return -jax.nn.log_softmax(logits(weights, x))[jnp.arange(len(y)), y].sum()


@jax.jit
def update(weights, speed, grads, rate):
    """Gradient descent with momentum."""
    speed = jax.tree.map(lambda v, g: 0.9 * v - rate * g, speed, grads)
    return jax.tree.map(jnp.add, weights, speed), speed


def main(steps: int) -> None:
    """Train, then say how good the weights are, and which."""
    images, labels = load()
    weights = init()
    speed = jax.tree.map(jnp.zeros_like, weights)
    with mm.Job((images[TEST:], labels[TEST:]), batch=128, lanes=8, reduction="exact") as job:
        # Compiled before it takes part, so that nobody waits for one who comes in later.
        weights, speed = job.share((weights, speed), warm=lambda state, lane: loss_and_grads(state[0], lane))
        for _ in job.steps(steps):
            loss, grads = job.sum(lambda lane, weights=weights: loss_and_grads(weights, lane))
            weights, speed = update(weights, speed, grads, 0.05 / job.batch)
            job.commit((weights, speed), loss=loss / job.batch)
    right = np.mean(np.argmax(logits(weights, images[:TEST]), axis=1) == labels[:TEST])
    digest = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(weights)))
    print(f"test accuracy {right:.1%}, weights {digest.hexdigest()[:16]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on scikit-learn's digits.")
    parser.add_argument("--steps", type=int, default=200)
    main(parser.parse_args().steps)
