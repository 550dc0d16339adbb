"""A character model of Python's manual in JAX: a small recurrent network and Adam. Alone, or on workers that may die:

    python examples/text_jax.py
    meshmend run -n 4 examples/text_jax.py

Both end with the same weights, bit for bit.
"""

import argparse
import os
import pydoc_data.topics

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

import meshmend as mm

TEXT = "\n".join(topic for _, topic in sorted(pydoc_data.topics.topics.items()))
LETTERS = sorted(set(TEXT))
LENGTH = 48


def load(characters: int):
    """Pieces of the text, and the same one character later."""
    index = {letter: number for number, letter in enumerate(LETTERS)}
    ids = np.array([index[letter] for letter in TEXT[: characters + 1]], np.int32)
    count = (len(ids) - 1) // LENGTH
    return ids[: count * LENGTH].reshape(count, LENGTH), ids[1 : count * LENGTH + 1].reshape(count, LENGTH)


def init(width: int):
    """Random weights: letters in, gates, letters out."""
    random = np.random.default_rng(0)
    shapes = {"letter": (len(LETTERS), width), "gates": (2 * width, 2 * width), "new": (2 * width, width)}
    weights = {name: random.normal(0, shape[0] ** -0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    return {
        **jax.tree.map(jnp.asarray, weights),
        "bias": jnp.zeros(2 * width),
        "guess": jnp.zeros((width, len(LETTERS))),
    }


def cell(weights, memory, ids):
    """One character: the memory after it, and scores of the next."""
    x = weights["letter"][ids]
    both = jax.nn.sigmoid(jnp.concatenate([x, memory], -1) @ weights["gates"] + weights["bias"])
    keep, use = jnp.split(both, 2, -1)
    new = jnp.tanh(jnp.concatenate([x, use * memory], -1) @ weights["new"])
    memory = keep * memory + (1 - keep) * new
    return memory, memory @ weights["guess"]


@jax.jit
@jax.value_and_grad
def loss_and_grads(weights, lane):
    """The loss a character, added up over the samples of a lane."""
    ids, after = lane
    empty = jnp.zeros((len(ids), weights["guess"].shape[0]))
    _, scores = jax.lax.scan(lambda memory, one: cell(weights, memory, one), empty, ids.T)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(scores), after.T[:, :, None], -1)
    return -chosen.sum() / LENGTH


@jax.jit
def update(state, grads):
    """Adam."""
    weights, mean, square, step = state
    step = step + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
    square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, square, grads)
    move = lambda w, m, s: w - 0.005 * m / (1 - 0.9**step) / (jnp.sqrt(s / (1 - 0.99**step)) + 1e-8)  # noqa: E731
    return jax.tree.map(move, weights, mean, square), mean, square, step


def write(weights, text: str, count: int) -> str:
    """Go on with a text, always with the likeliest character."""
    memory, ids = jnp.zeros(weights["guess"].shape[0]), [LETTERS.index(letter) for letter in text]
    for place in range(len(text) + count - 1):
        memory, scores = cell(weights, memory, ids[place])
        if place + 1 == len(ids):
            ids.append(int(scores.argmax()))
    return "".join(LETTERS[one] for one in ids)


def main(steps: int, characters: int, width: int) -> None:
    """Train, then write a little."""
    weights = init(width)
    zeros = jax.tree.map(jnp.zeros_like, weights)
    with mm.Job(load(characters), batch=64, lanes=8, reduction="exact") as job:
        state = job.share(
            (weights, zeros, zeros, jnp.zeros(())), warm=lambda state, lane: loss_and_grads(state[0], lane)
        )
        for _ in job.steps(steps):
            loss, grads = job.sum(lambda lane, weights=state[0]: loss_and_grads(weights, lane))
            state = update(state, jax.tree.map(lambda g: g / job.batch, grads))
            job.commit(state, loss=loss / job.batch)
    print(repr(write(state[0], "The ", 60)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on the text of Python's manual.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--characters", type=int, default=200_000)
    parser.add_argument("--width", type=int, default=96)
    main(**vars(parser.parse_args()))
