"""One rank of a real MPI job for tests: `mpirun … python -m tests.mesh.executors.mpi_member FOLDER CASES`.

CASES is a JSON list of (mesh, algorithm, chunks, numbers, dtype); the first ranks of the world are the live chips.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import meshmend as mm
from meshmend.mesh import read_mesh
from meshmend.mesh.executors.mpi import MeshSum
from tests.processes import wait_for


def main(folder: str, cases: str) -> None:
    world = MPI.COMM_WORLD
    rank = world.Get_rank()
    wrong = []
    for number, (text, algorithm, chunks, size, dtype) in enumerate(json.loads(cases)):
        mesh = read_mesh(text)
        chips = len(mesh.live)
        schedule = mm.plan(mesh, algorithm=algorithm).schedule(chunks)
        parts = np.random.default_rng(number).integers(-1000, 1000, (chips, size)).astype(dtype)
        group = world.Split(0 if rank < chips else MPI.UNDEFINED, rank)
        if group == MPI.COMM_NULL:
            continue
        order = mesh.live.tolist()
        order = order[number % chips :] + order[: number % chips]  # any rank may be any chip
        place = mesh.live.tolist().index(order[rank])
        sums = MeshSum(group, schedule, order)
        part, total = parts[place], np.empty(size, dtype)
        for _ in range(2):  # the same object again and again
            kept = part.copy()
            total[:] = -1
            sums(part, total)
            expected = np.asarray(mm.local.allreduce(schedule, parts))[place]
            if not np.array_equal(total, expected) or not np.array_equal(part, kept):
                wrong.append([number, rank])
    Path(folder, f"{rank}.json").write_text(json.dumps(wrong))
    # Not with a barrier: to whoever is still within one, a member that has left it and ended has failed.
    wait_for(lambda: all(Path(folder, f"{one}.json").exists() for one in range(world.Get_size())))
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
