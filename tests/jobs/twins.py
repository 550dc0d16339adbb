"""Small twins of the papers' networks with the optimisers they were trained with: residual blocks and LARS, or BERT's
blocks and LAMB. Both optimisers scale a layer's step by norms of the whole layer.

python twins.py [network=resnet|bert] [steps=8]
"""

import hashlib
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshmend as mm

WIDTH, WORDS, LENGTH, CLASSES = 16, 32, 12, 10


def normed(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Of one size, without statistics that a lane would have to share."""
    return (x - x.mean(axes, keepdims=True)) * jax.lax.rsqrt(x.var(axes, keepdims=True) + 1e-5)


def conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def resnet(weights: dict, lane: tuple) -> jax.Array:
    """Images of 8x8 into ten classes."""
    images, labels = lane
    x = conv(images, weights["stem"])
    for one, two in weights["blocks"]:
        x = x + conv(jax.nn.relu(normed(conv(jax.nn.relu(normed(x, (1, 2, 3))), one), (1, 2, 3))), two)
    return optax.softmax_cross_entropy_with_integer_labels(x.mean((1, 2)) @ weights["head"], labels).sum()


def bert(weights: dict, lane: tuple) -> jax.Array:
    """Texts in which every third word is guessed."""
    words, _ = lane
    hidden = words.at[:, ::3].set(0)
    x = weights["words"][hidden] + weights["places"]
    for query, up, down in weights["blocks"]:
        q, k, v = jnp.split(normed(x, (-1,)) @ query, 3, -1)
        x = x + jax.nn.softmax(q @ k.swapaxes(1, 2) / WIDTH**0.5) @ v
        x = x + jax.nn.gelu(normed(x, (-1,)) @ up) @ down
    guessed = (normed(x, (-1,)) @ weights["words"].T)[:, ::3]
    return optax.softmax_cross_entropy_with_integer_labels(guessed, words[:, ::3]).sum()


def made(network: str) -> tuple[dict, tuple]:
    """Weights and data."""
    random = np.random.default_rng(3)

    def normal(*shape: int) -> np.ndarray:
        return (0.1 * random.normal(size=shape)).astype(np.float32)

    if network == "resnet":
        blocks = [(normal(3, 3, WIDTH, WIDTH), normal(3, 3, WIDTH, WIDTH)) for _ in range(2)]
        weights = {"stem": normal(3, 3, 3, WIDTH), "blocks": blocks, "head": normal(WIDTH, CLASSES)}
        return weights, (normal(128, 8, 8, 3), random.integers(0, CLASSES, 128))
    blocks = [(normal(WIDTH, 3 * WIDTH), normal(WIDTH, 64), normal(64, WIDTH)) for _ in range(2)]
    weights = {"words": normal(WORDS, WIDTH), "places": normal(LENGTH, WIDTH), "blocks": blocks}
    return weights, (random.integers(1, WORDS, (128, LENGTH)), np.zeros(128, np.int64))


def main(network: str = "resnet", steps: int = 8) -> None:
    weights, data = made(network)
    gradient = jax.jit(jax.value_and_grad({"resnet": resnet, "bert": bert}[network]))
    optimizer = optax.lars(0.1, momentum=0.9) if network == "resnet" else optax.lamb(0.01)

    @jax.jit
    def update(state: tuple, grads: dict) -> tuple:
        changes, kept = optimizer.update(grads, state[1], state[0])
        return optax.apply_updates(state[0], changes), kept

    losses = []
    with mm.Job(data, batch=32, lanes=8, reduction="exact") as job:
        state = job.share((weights, optimizer.init(weights)))
        for _ in job.steps(steps):
            loss, grads = job.sum(lambda lane, state=state: gradient(state[0], tuple(map(jnp.asarray, lane))))
            state = update(state, jax.tree.map(lambda leaf: leaf / job.batch, grads))
            losses.append(float(loss) / job.batch)
            job.commit(state, loss=losses[-1])
    flat = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state))
    print(f"loss {losses[-1]:.6f}")
    print(f"weights {hashlib.sha256(flat).hexdigest()} after {steps}", flush=True)


if __name__ == "__main__":
    given = dict(word.split("=") for word in sys.argv[1:])
    main(given.get("network", "resnet"), int(given.get("steps", 8)))
