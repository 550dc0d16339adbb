"""Data-parallel training on a mesh of devices, in which a board dies: the program goes on without it.

    python examples/board_dies.py                                # on a TPU slice of 16 devices, or on a CPU
    python examples/board_dies.py --cpu-devices 16 --mesh 4x4 --fail 2x2@0,2

A small network learns handwritten digits. At `--at-step` the devices of the hole are left out: a new plan goes round,
every survivor keeps its own copy of the weights, and the same global batch is divided over fewer chips. The gradients
are the same sums as before, so the loss goes on as if nothing had happened.
"""

import argparse
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

import meshmend as mm

BATCH = 500
RATE = 0.2

Weights = dict[str, jax.Array]
Batch = dict[str, np.ndarray]


def load() -> Batch:
    """All samples, with a weight of one each."""
    images, labels = load_digits(return_X_y=True)
    return {"image": (images / 16).astype(np.float32), "label": labels, "weight": np.ones(len(labels), np.float32)}


def init() -> Weights:
    """Random weights of two layers."""
    random = np.random.default_rng(1)
    first, second = random.normal(0, 0.15, (64, 128)), random.normal(0, 0.1, (128, 10))
    return {
        k: jnp.asarray(v, jnp.float32) for k, v in {"first": first, "bias": np.zeros(128), "second": second}.items()
    }


def loss(weights: Weights, batch: dict[str, jax.Array]) -> jax.Array:
    """The loss of some samples, added up by their weights."""
    hidden = jax.nn.relu(batch["image"] @ weights["first"] + weights["bias"])
    chosen = jnp.take_along_axis(jax.nn.log_softmax(hidden @ weights["second"]), batch["label"][:, None], 1)
    return -jnp.sum(batch["weight"] * chosen[:, 0])


def draw(samples: Batch, step: int, chips: int) -> Batch:
    """The global batch of a step: the same samples for any number of chips, filled up with some that weigh nothing."""
    chosen = np.random.default_rng(step).choice(len(samples["label"]), BATCH, replace=False)
    more = -BATCH % chips
    return {k: np.concatenate([v[chosen], np.zeros((more, *v.shape[1:]), v.dtype)]) for k, v in samples.items()}


class Trainer(NamedTuple):
    """What belongs to one set of live devices."""

    reduce: "mm.jax.Allreduce"
    step: jax.stages.Compiled
    plan_seconds: float
    compile_seconds: float


def prepare(mesh: mm.Mesh, weights: Weights, samples: Batch) -> Trainer:
    """Plan the all-reduce on a mesh, and compile a training step over its live devices."""
    begin = time.perf_counter()
    plan = mm.plan(mesh, nbytes=sum(w.nbytes for w in weights.values()))
    mm.verify(plan)
    reduce = mm.jax.allreduce(plan)
    planned = time.perf_counter()

    def train(weights: Weights, batch: dict[str, jax.Array], tables: mm.jax.Tables) -> tuple[Weights, jax.Array]:
        own = jax.value_and_grad(loss)(weights, batch)
        total, grads = reduce(own, tables)
        return jax.tree.map(lambda w, g: w - RATE / BATCH * g, weights, grads), total / BATCH

    specs = P(), P("chips"), reduce.spec
    step = jax.jit(jax.shard_map(train, mesh=reduce.mesh, in_specs=specs, out_specs=P(), check_vma=False))
    compiled = step.lower(reduce.replicate(weights), draw(samples, 0, reduce.mesh.size), reduce.tables).compile()
    return Trainer(reduce, compiled, planned - begin, time.perf_counter() - planned)


def main(mesh: mm.Mesh, hole: str, at_step: int, steps: int) -> None:
    """Train, lose a board, go on."""
    samples, weights = load(), init()
    trainer = prepare(mesh, weights, samples)
    weights = trainer.reduce.replicate(weights)
    failed = 0.0
    for step in range(steps):
        if step == at_step:
            failed = time.perf_counter()
            trainer = prepare(mesh.fail(hole), weights, samples)
            weights = trainer.reduce.replicate(weights)
        chips = trainer.reduce.mesh.size
        begin = time.perf_counter()
        weights, now = trainer.step(weights, draw(samples, step, chips), trainer.reduce.tables)
        print(f"step {step:3}  chips {chips:3}  loss {float(now):.6f}", flush=True)
        if step == at_step:
            run, whole = time.perf_counter() - begin, time.perf_counter() - failed
            print(
                f"incident: {mesh.size - chips} of {mesh.size} chips died; next step after {whole:.3f} s: "
                f"plan {trainer.plan_seconds:.3f} s, compile {trainer.compile_seconds:.3f} s, run {run:.3f} s",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mesh", type=mm.Mesh.parse, default="4x4", help="how this process's devices are wired")
    parser.add_argument("--fail", default="2x2@0,2", help="the hole that comes")
    parser.add_argument("--at-step", type=int, default=20)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--cpu-devices", type=int, help="virtual devices to make on a machine that has no others")
    given = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", given.cpu_devices or given.mesh.size)  # for where there is only a CPU
    if given.cpu_devices:
        jax.config.update("jax_platforms", "cpu")
    size, found = given.mesh.size, len(jax.devices())
    if found != size:
        parser.error(f"{given.mesh} needs {size} devices, not {found}: give another --mesh, or --cpu-devices {size}")
    main(given.mesh, f"-{given.fail}", given.at_step, given.steps)
