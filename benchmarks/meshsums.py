"""What it costs on one host to keep to a mesh's links: planned sums beside MPI_Allreduce over shared memory.

    python benchmarks/meshsums.py [--mesh 4x4] [--mb 1,8,25] [--turns 15]

Ranks are chips; kinds take turns in one run, and every sum is checked. On one host all ranks share memory and there are
no links to spare, so MPI's own way has every advantage: this is the price of the executor, not its use. The use shows
on a network whose links are the limit: benchmarks/testbed.py.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

KINDS = ("trees", "ring", "rowpair")


def main() -> None:
    parser = argparse.ArgumentParser(description="Planned sums beside MPI_Allreduce on one host.")
    parser.add_argument("--mesh", default="4x4")
    parser.add_argument("--mb", default="1,8,25")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--member", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.member:
        member(chosen.mesh, [float(size) for size in chosen.mb.split(",")], chosen.turns)
        return
    import meshmend as mm
    from meshmend.run.world.mpirun import ON_HOSTS, OPTIONS, mpirun

    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    chips = str(len(mm.Mesh.parse(chosen.mesh).live))
    line = [mpirun(), *root, *OPTIONS, *ON_HOSTS, "-n", chips, sys.executable, *sys.argv, "--member"]
    raise SystemExit(subprocess.run(line).returncode)


def member(text: str, sizes: list[float], turns: int) -> None:
    import numpy as np
    from mpi4py import MPI

    import meshmend as mm
    from meshmend.job.transport.mesh_mpi import CHUNK, MOST
    from meshmend.mesh.executors.mpi import MeshSum
    from meshmend.mesh.schedule import schedule

    world, mesh = MPI.COMM_WORLD, mm.Mesh.parse(text)
    first = world.Get_rank() == 0
    if first:
        print(f"{mesh}, {len(mesh.live)} ranks on {os.cpu_count()} cores\n")
        print(f"{'':>8}{'kind':>12}{'ms':>9}{'quartiles':>18}{'ratio':>9}")
    for size in sizes:
        numbers = int(size * 1e6 / 4)
        part, total = np.full(numbers, world.Get_rank() + 1, np.int32), np.empty(numbers, np.int32)
        expected = len(mesh.live) * (len(mesh.live) + 1) // 2
        ways = {"MPI_Allreduce": lambda p=part, t=total: world.Allreduce(p, t)}
        for kind in KINDS:
            try:
                plan = mm.plan(mesh, algorithm=kind)
            except mm.PlanError:
                continue
            ways[kind] = MeshSum(world, schedule(plan, max(len(plan), min(MOST, 4 * numbers // CHUNK))))
        times: dict[str, list[float]] = {kind: [] for kind in ways}
        for turn in range(turns + 1):
            for kind, way in ways.items():
                total[:] = 0
                world.Barrier()
                begin = time.perf_counter()
                way() if kind == "MPI_Allreduce" else way(part, total)
                world.Barrier()
                if turn:
                    times[kind].append(1e3 * (time.perf_counter() - begin))
                assert (total == expected).all(), kind
        if first:
            base = np.median(times["MPI_Allreduce"])
            for kind, found in times.items():
                low, middle, high = np.percentile(found, [25, 50, 75])
                spread = f"{low:.1f}–{high:.1f}"
                print(f"{size:5.0f} MB{kind:>15}{middle:9.1f}{spread:>18}{middle / base:9.2f}", flush=True)


if __name__ == "__main__":
    main()
