"""A small convolutional network that learns handwritten digits. It runs alone, and on workers that may die:

    python digits.py
    meshmend run -n 4 digits.py

The gradients are summed exactly, so both end with the same weights, bit for bit.
"""

import argparse
import hashlib
import json
import os
from functools import partial
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"  # the workers share this machine's cores already

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import meshmend as mm

TEST = 360  # of 1797 samples
BATCH, LANES = 256, 16
RATE, MOMENTUM = 0.01, 0.9

Weights = dict[str, jax.Array]


def load() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Samples to train on, and others to test with."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    samples = {"image": (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)[order], "label": labels[order]}
    return {k: v[TEST:] for k, v in samples.items()}, {k: v[:TEST] for k, v in samples.items()}


def init() -> Weights:
    """Random weights, scaled by how many inputs are added up."""
    random = np.random.default_rng(1)
    shapes = {"conv1": (3, 3, 1, 16), "conv2": (3, 3, 16, 32), "dense": (4 * 4 * 32, 64), "out": (64, 10)}
    weights = {k: random.normal(0, np.sqrt(2 / np.prod(s[:-1])), s) for k, s in shapes.items()}
    biases = {f"{k}_bias": np.zeros(s[-1]) for k, s in shapes.items()}
    return {k: jnp.asarray(v, jnp.float32) for k, v in (weights | biases).items()}


def logits(w: Weights, x: jax.Array) -> jax.Array:
    """Two convolutions, a pool, two dense layers."""
    for layer in ("conv1", "conv2"):
        x = jax.lax.conv_general_dilated(x, w[layer], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + w[f"{layer}_bias"])
    x = x.reshape(-1, 4, 2, 4, 2, 32).max((2, 4)).reshape(len(x), -1)
    x = jax.nn.relu(x @ w["dense"] + w["dense_bias"])
    return x @ w["out"] + w["out_bias"]


@jax.jit
@jax.value_and_grad
def loss_and_grads(w: Weights, lane: dict[str, jax.Array]) -> jax.Array:
    """The loss of a lane, added up over its samples, and the gradient of that."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits(w, lane["image"])), lane["label"][:, None], axis=1)
    return -jnp.sum(chosen)


@jax.jit
def update(w: Weights, speed: Weights, grads: Weights) -> tuple[Weights, Weights]:
    """Gradient descent with momentum."""
    speed = jax.tree.map(lambda v, g: MOMENTUM * v - RATE / BATCH * g, speed, grads)
    return jax.tree.map(jnp.add, w, speed), speed


def main(steps: int, results: Path | None) -> None:
    """Train, then say how good the weights are, and which."""
    train, test = load()
    weights = init()
    speed = jax.tree.map(jnp.zeros_like, weights)
    with mm.Job(train, batch=BATCH, lanes=LANES, reduction="exact") as job:
        # Compiled before it takes part, so that no worker waits for a newcomer.
        warm = lambda state, lane: update(*state, loss_and_grads(state[0], lane)[1])  # noqa: E731
        weights, speed = job.share((weights, speed), warm=warm)
        for _ in job.steps(steps):
            loss, grads = job.sum(partial(loss_and_grads, weights))
            weights, speed = update(weights, speed, grads)
            job.commit((weights, speed), loss=loss / BATCH)
    accuracy = float(np.mean(np.argmax(logits(weights, jnp.asarray(test["image"])), axis=1) == test["label"]))
    digest = hashlib.sha256(b"".join(np.asarray(weights[name]).tobytes() for name in sorted(weights)))
    if results is None:
        print(f"test accuracy {accuracy:.2%}, weights {digest.hexdigest()}")
    else:
        found = {"accuracy": accuracy, "weights": digest.hexdigest()}
        (results / f"{job.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on scikit-learn's digits.")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument(
        "--results", type=Path, help="write the result of each worker to a file in this folder, and do not print it"
    )
    main(**vars(parser.parse_args()))
