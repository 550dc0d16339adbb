"""A transformer that no single device of a worker holds: its weights are cut over the worker's own devices.

    pip install optax
    python examples/transformer_sharded.py
    meshmend run -n 2 examples/transformer_sharded.py

Two kinds of parallelism at once. Inside a worker, tensor parallelism: attention heads and the columns of the network
are divided between its devices, and XLA adds what belongs together. Between workers, data parallelism: the job sums
gradients, each shard by itself. A worker that dies takes all its devices with it; its replacement gets the state with
the same sharding. Here the devices are four threads of the processor; on accelerators they are what a host has.
"""

import argparse
import hashlib
import os
import pydoc_data.topics
from functools import partial

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshmend as mm

TEXT = np.frombuffer("".join(pydoc_data.topics.topics.values()).encode(), np.uint8)
LENGTH, WIDTH, HEADS = 32, 64, 4
BLOCK = {  # shape, and which dimension is divided between devices
    "norms": ((2, WIDTH), P()),
    "qkv": ((WIDTH, 3, HEADS, WIDTH // HEADS), P(None, None, "model")),
    "out": ((HEADS, WIDTH // HEADS, WIDTH), P("model")),
    "up": ((WIDTH, 4 * WIDTH), P(None, "model")),
    "down": ((4 * WIDTH, WIDTH), P("model")),
}
WEIGHTS = {"bytes": ((256, WIDTH), P("model")), "places": ((LENGTH, WIDTH), P()), "norm": ((WIDTH,), P())}


def initial(layers: int, devices: int) -> dict:
    """Weights on their devices; the same numbers on however many."""
    mesh, random = Mesh(np.array(jax.local_devices()[:devices]), ("model",)), np.random.default_rng(0)

    def made(name, shape, spec):
        value = np.ones(shape) if "norm" in name else random.normal(0, 0.1, shape)
        return jax.device_put(value.astype(np.float32), NamedSharding(mesh, spec))

    weights = {name: made(name, *how) for name, how in WEIGHTS.items()}
    weights["blocks"] = [{name: made(name, *how) for name, how in BLOCK.items()} for _ in range(layers)]
    return weights


def normed(x, scale):
    """Numbers of one size at every place."""
    return scale * x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def scores(weights, ids):
    """How likely each byte is to come next, at every place."""
    x = weights["bytes"][ids] + weights["places"]
    later = jnp.triu(jnp.full((LENGTH, LENGTH), -1e9), 1)
    for block in weights["blocks"]:
        q, k, v = jnp.einsum("blw,wnhs->nbhls", normed(x, block["norms"][0]), block["qkv"])
        seen = jax.nn.softmax(jnp.einsum("bhls,bhms->bhlm", q, k) * q.shape[-1] ** -0.5 + later)
        x += jnp.einsum("bhlm,bhms,hsw->blw", seen, v, block["out"])
        x += jax.nn.gelu(normed(x, block["norms"][1]) @ block["up"]) @ block["down"]
    return normed(x, weights["norm"]) @ weights["bytes"].T


@jax.jit
@jax.value_and_grad
def loss_and_grads(weights, ids):
    """The loss per byte, added up over the samples of a lane."""
    found = scores(weights, ids[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(found, ids[:, 1:]).sum() / LENGTH


def main(steps: int, layers: int, devices: int) -> None:
    """Train, then say which weights it has."""
    pieces = np.lib.stride_tricks.sliding_window_view(TEXT, LENGTH + 1)[:: LENGTH // 2][:4096].astype(np.int32)
    optimizer = optax.adam(3e-3)

    @partial(jax.jit, donate_argnums=0)
    def update(state, grads):
        """What it makes lies where the state lay, and takes its memory."""
        changes, moments = optimizer.update(grads, state["moments"])
        return {"weights": optax.apply_updates(state["weights"], changes), "moments": moments}

    weights = initial(layers, devices)
    state = {"weights": weights, "moments": optimizer.init(weights)}
    with mm.Job(pieces, batch=64, lanes=8, reduction="exact") as job:
        state = job.share(state, warm=lambda state, lane: loss_and_grads(state["weights"], lane))
        for _ in job.steps(steps):
            loss, grads = job.sum(lambda lane: loss_and_grads(state["weights"], lane))  # noqa: B023
            state = update(state, jax.tree.map(lambda g: g / job.batch, grads))
            job.commit(state, loss=loss / job.batch)
    leaves = jax.tree.leaves(state["weights"])
    each = sum(leaf.addressable_data(0).size for leaf in leaves)
    digest = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()[:16]
    print(f"{each} of {sum(leaf.size for leaf in leaves)} numbers on each device, weights {digest}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on the text of Python's manual, on several devices per worker.")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--devices", type=int, default=4, help="devices of a worker: 1, 2 or 4")
    main(**vars(parser.parse_args()))
