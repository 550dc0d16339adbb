"""One rank of benchmarks/testbed.py: first the speed of a link, then sums by every kind in turns."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from mpi4py import MPI

import meshmend as mm
from meshmend.job.courier.mpi import patient
from meshmend.mesh.executors.mpi import MeshSum
from meshmend.mesh.schedule import schedule

STREAM, MESSAGE = 4 << 20, 1 << 16
SMALL = 20
CHUNK = 1 << 16


def main(text: str, sizes: str, turns: int, kinds: str, out: str) -> None:
    world, mesh = MPI.COMM_WORLD, mm.Mesh.parse(text)
    found: dict = {"link": link_speed(world), "rows": []}
    for size in map(float, sizes.split(",")):
        numbers = int(size * 1e6 / 4)
        part, total = np.full(numbers, world.Get_rank() + 1, np.int32), np.empty(numbers, np.int32)
        ways: dict[str, tuple[int, Callable[[], object]]] = {}
        for kind in kinds.split(","):
            if kind == "MPI_Allreduce":
                ways[kind] = (0, partial(world.Allreduce, part, total))
                continue
            try:
                plan = mm.plan(mesh, algorithm=kind)
            except mm.PlanError:
                continue
            chunks = max(len(plan), -(-4 * numbers // CHUNK // len(plan)) * len(plan))
            sums = MeshSum(world, schedule(plan, chunks))
            ways[kind] = (chunks, partial(sums, part, total))
        rows = {kind: {"mb": size, "kind": kind, "chunks": chunks, "seconds": []} for kind, (chunks, _) in ways.items()}
        spent = dict.fromkeys(ways, np.zeros(2))
        for turn in range(turns):
            for kind, (_, way) in ways.items():
                if kind == "MPI_Allreduce" and turn:
                    continue  # it takes many times as long
                total[:] = 0
                patient(world.Ibarrier())
                before, begin = processor(), time.perf_counter()
                way()
                own, most = np.array([time.perf_counter() - begin]), np.zeros(1)
                patient(world.Iallreduce(own, most, MPI.MAX))
                spent[kind] = spent[kind] + processor() - before
                rows[kind]["seconds"].append(float(most[0]))
                assert (total == world.Get_size() * (world.Get_size() + 1) // 2).all(), kind
        for kind, (idle, all_) in spent.items():
            rows[kind]["idle"] = float(idle / max(1, all_))
        found["rows"] += rows.values()
    if world.Get_rank() == 0:
        Path(out).write_text(json.dumps(found))
    patient(world.Ibarrier())


def link_speed(world: MPI.Comm) -> dict[str, float]:
    """Bytes per second, and seconds a hop, from rank 0 to its neighbour in the east: an echo, and a stream."""
    data, rank = np.zeros(MESSAGE, np.uint8), world.Get_rank()
    if rank > 1:
        patient(world.Ibarrier())
        return {}
    other, one = 1 - rank, data[:1]
    trips = []
    for _ in range(SMALL):
        begin = time.perf_counter()
        world.Send(one, other) if rank == 0 else world.Recv(one, other)
        world.Recv(one, other) if rank == 0 else world.Send(one, other)
        trips.append(time.perf_counter() - begin)
    count = STREAM // MESSAGE
    speeds = []
    for _ in range(3):
        world.Sendrecv(one, other, recvbuf=one.copy(), source=other)
        begin = time.perf_counter()
        for _ in range(count):
            world.Send(data, other) if rank == 0 else world.Recv(data, other)
        world.Recv(one, other) if rank == 0 else world.Send(one, other)
        speeds.append(STREAM / (time.perf_counter() - begin - np.median(trips) / 2))
    patient(world.Ibarrier())
    return {"bandwidth": float(np.median(speeds)), "latency": float(np.median(trips)) / 2}


def processor() -> np.ndarray:
    """(idle, all) ticks of this machine so far."""
    ticks = np.array([int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]], float)
    return np.array([ticks[3] + ticks[4], ticks.sum()])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5])
