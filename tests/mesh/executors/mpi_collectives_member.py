"""One rank of a real MPI job: `mpirun … python -m tests.mesh.executors.mpi_collectives_member FOLDER CASES`.

CASES is a JSON list of (mesh, what, numbers, dtype), where `what` is a collective, the tile of groups, or "staged" and
the distances between roots; the first ranks of the world are the live chips.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import meshmend as mm
from meshmend.mesh.executors.mpi_collectives import MeshCollective
from meshmend.mesh.executors.mpi_staged import MeshStaged
from meshmend.mesh.staged import StagedPlan, StagedSchedule, staged
from tests.processes import wait_for


def planned(text: str, what: str) -> mm.CollectivePlan | StagedPlan:
    """Of this collective, in groups of this tile, or in stages."""
    if what.startswith("staged"):
        return staged(mm.Mesh.parse(text), [*map(int, what.split()[1:])])
    if what in mm.COLLECTIVES:
        return mm.plan(text, collective=what)
    return mm.plan(text, groups=mm.tile(*map(int, what.split("x"))))


def main(folder: str, cases: str) -> None:
    world = MPI.COMM_WORLD
    rank = world.Get_rank()
    wrong = []
    for number, (text, what, size, dtype) in enumerate(json.loads(cases)):
        plan = planned(text, what)
        chips = len(plan.mesh.live)
        shape = {"reduce_scatter": (chips, chips * size), "all_to_all": (chips, chips, size)}.get(what, (chips, size))
        parts = (1000 * np.random.default_rng(number).normal(size=shape)).astype(dtype)
        group = world.Split(0 if rank < chips else MPI.UNDEFINED, rank)
        if group == MPI.COMM_NULL:
            continue
        order = plan.mesh.live.tolist()
        order = order[number % chips :] + order[: number % chips]  # any rank may be any chip
        place = plan.mesh.live.tolist().index(order[rank])
        schedule = plan.schedule(nbytes=float(max(1, parts[0].nbytes)))
        mm.save(schedule, f"{folder}/{number}.{rank}.mm")  # what came from a file runs as well
        loaded = mm.load(f"{folder}/{number}.{rank}.mm")
        assert isinstance(loaded, mm.CollectiveSchedule | StagedSchedule)
        if isinstance(loaded, StagedSchedule):
            expected = mm.local.allreduce(loaded, parts)[place]
            collective: MeshCollective | MeshStaged = MeshStaged(group, loaded, order)
        else:
            expected = mm.local.run(loaded, parts)[place]
            collective = MeshCollective(group, loaded, order)
        for _ in range(2):  # the same object again and again
            kept = parts[place].copy()
            got = collective(parts[place])
            if got.dtype != expected.dtype or not np.array_equal(got, expected):
                wrong.append([number, rank, "output"])
            if not np.array_equal(parts[place], kept):
                wrong.append([number, rank, "input"])
    Path(folder, f"{rank}.json").write_text(json.dumps(wrong))
    # Not with a barrier: to whoever is still within one, a member that has left it and ended has failed.
    wait_for(lambda: all(Path(folder, f"{one}.json").exists() for one in range(world.Get_size())))
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
