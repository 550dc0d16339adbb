"""The small twins around a hole: trained on a mesh that has lost chips, beside the same batches on the whole mesh.

    python benchmarks/networks/holes.py              16 XLA devices of this processor, 4x4, and 4x4 minus a 2x2 board
    python benchmarks/networks/holes.py --testbed    a mesh of network namespaces, 2x3, and 2x3 minus a chip (as root)

Every chip starts with the same weights and adds its gradients up over the links that are left, by the proved plan. The
whole mesh and the one with the hole get the same batches; they differ only in who adds which samples, and in the order.
XLA devices run the twins in JAX, in float32; the testbed runs those in PyTorch as a job with exact sums.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P
from twins import TWINS, Tape, batches

import meshmend as mm
from meshmend import report
from meshmend.base.terminal import table
from meshmend.telemetry import Committed, read

HERE = Path(__file__).parent
BATCH, RATE = 48, 0.05
RATE_OF_LINKS = "200mbit"
DEADLINE = 600.0


def train(name: str, mesh: mm.Mesh, steps: int) -> tuple[list[float], list[Any]]:
    """The loss of every step, and the weights of every chip at the end."""
    twin, tape = TWINS[name], Tape()
    first = next(batches(name, BATCH, 1))
    twin(tape, first["inputs"][:1], first["labels"][:1])
    plan = mm.plan(mesh, nbytes=sum(value.nbytes for value in tape.made.values()), algorithm="trees")
    mm.verify(plan)
    reduce = mm.jax.allreduce(plan)

    def loss(weights: Any, batch: Any) -> Any:
        return (batch["weights"] * twin(Tape(weights), batch["inputs"], batch["labels"])).sum()

    def step(weights: Any, batch: Any, tables: Any) -> Any:
        total, grads = reduce(jax.value_and_grad(loss)(weights, batch), tables)
        return jax.tree.map(lambda w, g: w - RATE / BATCH * g, weights, grads), total / BATCH

    specs = P(), P("chips"), reduce.spec
    compiled = jax.jit(jax.shard_map(step, mesh=reduce.mesh, in_specs=specs, out_specs=P(), check_vma=False))
    weights, losses = reduce.replicate(tape.made), []
    for batch in islice(batches(name, BATCH, reduce.mesh.size), steps):
        weights, now = compiled(weights, batch, reduce.tables)
        losses.append(float(now))
    return losses, [[np.asarray(shard.data) for shard in value.addressable_shards] for value in weights.values()]


def alike(weights: list[Any]) -> bool:
    """Whether every chip has the same bits."""
    return all(np.array_equal(shards[0], other) for shards in weights for other in shards[1:])


def train_on_testbed(name: str, mesh: str, steps: int) -> Committed:
    """The last step of a job whose workers are the chips of a testbed."""
    with tempfile.TemporaryDirectory() as folder:
        run = ["meshmend", "run", "--mesh", mesh, "--name", name, str(HERE / "train.py"), name, str(steps), "--twin"]
        line = ["meshmend", "testbed", *mesh.split(), "--rate", RATE_OF_LINKS, "--", sys.executable, "-m", *run]
        environment = {**os.environ, "MESHMEND_RUNS": folder, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-m", *line], env=environment, capture_output=True, text=True, timeout=DEADLINE
        )
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        events = read(Path(folder) / name)
        if not report.check(events).clean:
            raise SystemExit(done.stdout)
        return max((event for event in events if isinstance(event, Committed)), key=lambda event: event.step)


def on_testbed(names: list[str], mesh: str, hole: str, steps: int) -> None:
    """The table of the testbed."""
    rows = []
    for name in names:
        whole, holed = (train_on_testbed(name, one, steps) for one in (mesh, f"{mesh} -{hole}"))
        same = "the same bits" if whole.digest == holed.digest else "other bits"
        rows.append((name, f"{whole.metrics['loss']:.4f}", f"{holed.metrics['loss']:.4f}", same))
        print(f"{name}: {same}", file=sys.stderr, flush=True)
    print(f"{mesh}, and {mesh} -{hole}, links of {RATE_OF_LINKS}; exact sums, {steps} steps")
    print(table(("twin", "whole mesh", "with the hole", "weights"), rows))


def main() -> None:
    parser = argparse.ArgumentParser(description="Small twins of the papers' networks around a hole.")
    parser.add_argument("--mesh", default="", help="4x4 unless it is said; on the testbed 2x3")
    parser.add_argument("--hole", default="", help="2x2@0,2 unless it is said; on the testbed chip@0,1")
    parser.add_argument("--testbed", action="store_true", help="on a mesh of network namespaces")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", default=",".join(TWINS))
    chosen = parser.parse_args()
    if chosen.testbed:
        on_testbed(chosen.only.split(","), chosen.mesh or "2x3", chosen.hole or "chip@0,1", chosen.steps)
        return
    chosen.mesh, chosen.hole = chosen.mesh or "4x4", chosen.hole or "2x2@0,2"
    mesh = mm.Mesh.parse(chosen.mesh)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", mesh.size)
    rows = []
    for name in chosen.only.split(","):
        whole, holed = train(name, mesh, chosen.steps), train(name, mesh.fail(f"-{chosen.hole}"), chosen.steps)
        apart = max(abs(a - b) for a, b in zip(whole[0], holed[0], strict=True))
        size = sum(shards[0].size for shards in whole[1])
        same = "all chips alike" if alike(whole[1]) and alike(holed[1]) else "chips differ"
        rows.append((name, f"{size:,}", f"{whole[0][0]:.4f}", f"{whole[0][-1]:.4f}", f"{holed[0][-1]:.4f}",
                     f"{apart:.1e}", same))  # fmt: skip
    print(f"{chosen.mesh}, and {chosen.mesh} -{chosen.hole}; {chosen.steps} steps of {BATCH} samples")
    print(table(("twin", "parameters", "first loss", "whole mesh", "with the hole", "most apart", "bits"), rows))


if __name__ == "__main__":
    main()
