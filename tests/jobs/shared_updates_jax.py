"""A small classifier in JAX whose updates are sharded, with Adam of optax: weights must be those of one worker alone.

`steps=NUMBER`; `crowd=N` ends after the first step from 20 on that N workers took part in.
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


def main() -> None:
    options = dict(word.split("=") for word in sys.argv[1:])
    random = np.random.default_rng(0)
    x = random.normal(size=(400, 32)).astype(np.float32)
    y = (x @ random.normal(size=(32, 10))).argmax(1)
    keys = jax.random.split(jax.random.key(1))
    weights = {
        "one": {"w": jax.random.normal(keys[0], (32, 128)) * 0.1, "b": jnp.zeros(128)},
        "two": jax.random.normal(keys[1], (128, 10)) * 0.1,
    }

    def loss_of(weights: dict, lane: tuple) -> jax.Array:
        hidden = jnp.tanh(lane[0] @ weights["one"]["w"] + weights["one"]["b"])
        return optax.softmax_cross_entropy_with_integer_labels(hidden @ weights["two"], lane[1]).sum()

    gradient = jax.jit(jax.value_and_grad(loss_of))
    adam = optax.chain(optax.scale(1 / 64), optax.adamw(0.01))
    with mm.Job((x, y), batch=64, lanes=8, reduction="exact") as job:
        weights = job.share(weights, optimizer=adam)
        assert isinstance(weights["two"], jax.Array)
        for step in job.steps(int(options.get("steps", 12))):
            weights, loss = job.update(lambda lane, weights=weights: gradient(weights, lane)[::-1])
            job.commit(loss=loss / job.batch)
            if step >= 20 and len(job.training.session.account.digests) == int(options.get("crowd", -1)):
                break
        leaves = jax.tree_util.tree_leaves(weights)
        digest = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()
        print(f"weights {digest} after {job.step}", flush=True)


if __name__ == "__main__":
    main()
