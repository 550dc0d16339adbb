"""Two matrices that are cut over the devices of a worker. All arithmetic is exact, so any sharding gives the same bits.

python sharded.py [steps=12] [devices=4] [other=RANK] [gate=STEP]

The worker of rank `other` shards in another way; after step `gate` all wait until there is a file called `open`.
"""

import hashlib
import os
import sys
import time

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshmend as mm


def loss(weights: dict, lane: np.ndarray) -> jax.Array:
    """Whole multiples of a power of two, and few enough of them for float32."""
    return 0.5 * ((lane @ weights["in"] @ weights["out"] - 1) ** 2).sum()


gradient = jax.jit(jax.value_and_grad(loss))


@jax.jit
def update(state: dict, grads: dict) -> dict:
    weights = jax.tree.map(lambda w, g: jnp.clip(w - jnp.sign(g) / 4, -2, 2), state["weights"], grads)
    return {"weights": weights, "step": state["step"] + 1}


def main(steps: int = 12, devices: int = 4, other: int = -1, gate: int = -1) -> None:
    random = np.random.default_rng(1)
    data = random.integers(-2, 3, (256, 8)).astype(np.float32)
    mesh = Mesh(np.array(jax.local_devices()[:devices]), ("model",))
    cuts = {"in": P(None, "model"), "out": P("model")}
    if os.environ.get("MESHMEND_RANK") == str(other):
        cuts = {"in": P("model"), "out": P()}
    weights = {
        name: jax.device_put(random.integers(-8, 9, shape).astype(np.float32) / 4, NamedSharding(mesh, cuts[name]))
        for name, shape in (("in", (8, 160)), ("out", (160, 8)))
    }
    with mm.Job(data, batch=32, lanes=8, reduction="exact") as job:
        state = job.share({"weights": weights, "step": jnp.int32(0)})
        for step in job.steps(steps):
            value, grads = job.sum(lambda lane, state=state: gradient(state["weights"], lane))
            state = update(state, grads)
            job.commit(state, loss=value / job.batch)
            while step == gate and not os.path.exists("open"):
                time.sleep(0.01)
    found = state["weights"]
    kept = all(leaf.sharding.is_equivalent_to(NamedSharding(mesh, cuts[name]), 2) for name, leaf in found.items())
    print(f"{devices} devices, sharding {'kept' if kept else 'lost'}")
    flat = b"".join(np.asarray(leaf).tobytes() for leaf in found.values())
    print(f"weights {hashlib.sha256(flat).hexdigest()} after {int(state['step'])}", flush=True)


if __name__ == "__main__":
    main(**{key: int(value) for key, value in (word.split("=") for word in sys.argv[1:])})
