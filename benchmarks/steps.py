"""Steps of a training loop with `mm.Job` beside the same loop with a bare MPI_Allreduce in the worker's own process.

    python benchmarks/steps.py [--quick] [--jax] [--sizes 25,100] [--rounds 5] [--kinds one,pieces,float,exact]

Four processes each. Short runs of all kinds take turns, so that a busy machine slows all alike: trust the ratios.

    one      MPI_Allreduce of the whole flat buffer      float   mm.Job
    pieces   the same in pieces of 1 M numbers           exact   mm.Job(reduction="exact")

`lanes` is the time in the gradients' own computing, `update` that of the update, `other` the rest: packing, summing,
waiting for the others, unpacking, the seal. A ratio is that of a round's medians to those of `one` in the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from meshmend.launch.mpirun import OPTIONS, mpirun

HERE = Path(__file__).parent / "loops"
KINDS = ("one", "pieces", "float", "exact")
WORKERS = 4


def times(kind: str, framework: str, size: int, warm: int, steps: int) -> np.ndarray:
    """Run one loop; (whole, lanes, update) of each step after warm-up, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/times.json"
        args = [framework, str(size), str(warm), str(steps), kind, out]
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        if kind in ("one", "pieces"):
            line = [mpirun(), *root, *OPTIONS, "-n", str(WORKERS), sys.executable, str(HERE / "bare.py"), *args]
        else:
            line = [sys.executable, "-m", "meshmend", "run", "-n", str(WORKERS), str(HERE / "job.py"), *args]
        # One thread a process: there are already more processes than cores.
        threads = {name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NPROC")}
        threads["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        done = subprocess.run(line, env={**os.environ, **threads}, capture_output=True, text=True, timeout=600)
        if done.returncode or not Path(out).exists():
            raise SystemExit(f"{' '.join(line)} failed:\n{done.stdout}{done.stderr}")
        return 1e3 * np.array(json.loads(Path(out).read_text())["rows"])


def compare(framework: str, size: int, rounds: int, warm: int, steps: int, kinds: list[str]) -> None:
    """All kinds in turn, and what came out."""
    found: dict[str, list[np.ndarray]] = {kind: [] for kind in kinds}
    for turn in range(rounds):
        for kind in kinds if turn % 2 == 0 else reversed(kinds):
            found[kind].append(times(kind, framework, size, warm, steps))
    print(f"\n{size} MB of float32 gradients, {framework}, {WORKERS} processes, {rounds} rounds of {steps} steps")
    print(f"{'':8}{'step ms':>9} {'quartiles':>15}{'lanes':>8}{'update':>8}{'other':>8}   ratio to {kinds[0]}, by round")
    base = [np.median(rows[:, 0]) for rows in found[kinds[0]]]
    for kind, runs in found.items():
        every = np.concatenate(runs)
        whole, lanes, update = every.T
        low, middle, high = np.percentile(whole, [25, 50, 75])
        ratios = [float(np.median(rows[:, 0]) / b) for rows, b in zip(runs, base, strict=True)]
        print(
            f"{kind:8}{middle:9.1f} {low:7.1f}–{high:<7.1f}{np.median(lanes):8.1f}{np.median(update):8.1f}"
            f"{np.median(whole - lanes - update):8.1f}   {np.median(ratios):.3f}  ({min(ratios):.3f}–{max(ratios):.3f})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="The time of a step with mm.Job and with a bare MPI_Allreduce.")
    parser.add_argument("--quick", action="store_true", help="two rounds of a few steps, 25 MB only")
    parser.add_argument("--jax", action="store_true", help="the model in JAX, not in numpy")
    parser.add_argument("--sizes", default="")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rounds", type=int, default=0)
    chosen = parser.parse_args()
    rounds = chosen.rounds or (2 if chosen.quick else 5)
    steps = 10 if chosen.quick else 30
    for size in chosen.sizes.split(",") if chosen.sizes else ["25"] if chosen.quick else ["25", "100"]:
        kinds = chosen.kinds.split(",")
        compare("jax" if chosen.jax else "numpy", int(size), rounds, 5, steps, kinds)


if __name__ == "__main__":
    main()
