"""A transformer of flax and optax that reads Python's manual: dropout, a schedule, an average of the weights.

    pip install flax optax
    python examples/transformer_flax.py
    meshmend run -n 4 examples/transformer_flax.py

Lanes are the microbatches of gradient accumulation: 64 samples in 16 lanes of 4, of which each worker does its share.
"""

import argparse
import hashlib
import os
import pydoc_data.topics

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import optax
from flax import linen as nn

import meshmend as mm

TEXT = np.frombuffer("".join(pydoc_data.topics.topics.values()).encode(), np.uint8)
LENGTH, WIDTH, HEADS = 32, 64, 4


class Block(nn.Module):
    """Attention to earlier places, then a small network at each."""

    drop: float = 0.1

    @nn.compact
    def __call__(self, x):
        mask = nn.make_causal_mask(x[..., 0])
        seen = nn.MultiHeadDotProductAttention(HEADS, deterministic=False)(nn.LayerNorm()(x), mask=mask)
        x += nn.Dropout(self.drop, deterministic=False)(seen)
        more = nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))))
        return x + nn.Dropout(self.drop, deterministic=False)(more)


class Transformer(nn.Module):
    """Scores of the next byte at every place."""

    layers: int

    @nn.compact
    def __call__(self, ids):
        embed = nn.Embed(256, WIDTH)
        x = embed(ids) + self.param("place", nn.initializers.normal(0.02), (LENGTH, WIDTH))
        for _ in range(self.layers):
            x = Block()(x)
        return embed.attend(nn.LayerNorm()(x))


def main(steps: int, layers: int) -> None:
    """Train, then say which weights it has."""
    pieces = np.lib.stride_tricks.sliding_window_view(TEXT, LENGTH + 1)[:: LENGTH // 2][:4096].astype(np.int32)
    model = Transformer(layers)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 3e-3, 10, max(steps, 11))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))

    @jax.jit
    @jax.value_and_grad
    def loss_and_grads(params, ids, key):
        """The loss per byte, added up over the samples of a lane."""
        scores = model.apply(params, ids[:, :-1], rngs={"dropout": key})
        return optax.softmax_cross_entropy_with_integer_labels(scores, ids[:, 1:]).sum() / LENGTH

    @jax.jit
    def update(state, grads):
        """AdamW, and a moving average of the weights."""
        changes, moments = optimizer.update(grads, state["moments"], state["params"])
        params = optax.apply_updates(state["params"], changes)
        return {"params": params, "moments": moments, "ema": optax.incremental_update(params, state["ema"], 0.02)}

    params = model.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, pieces[:1, :-1])
    state = {"params": params, "moments": optimizer.init(params), "ema": params}
    compute = lambda state, lane, draws: loss_and_grads(state["params"], lane, draws.key)  # noqa: E731
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
