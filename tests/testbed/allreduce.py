"""An MPI program for the testbed: where its ranks are, and how long the library's own all-reduce takes.

`allreduce.py BYTES [TIMES]`: rank 0 prints every rank's chip and host, the best time of an all-reduce, and which part
of the machine's processors was idle meanwhile.
"""

from __future__ import annotations

import os
import socket
import sys
import time

import numpy as np
from mpi4py import MPI


def processors() -> tuple[int, int]:
    """(all, idle) ticks so far."""
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:]]
    return sum(ticks), ticks[3] + ticks[4]


world = MPI.COMM_WORLD
count = int(sys.argv[1]) // 4
places = world.gather((world.rank, os.environ.get("MESHMEND_CHIP"), socket.gethostname()))
mine, total = np.full(count, world.rank, np.float32), np.empty(count, np.float32)
best, idle = float("inf"), 0.0
for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 1):
    world.Barrier()
    began, before = time.monotonic(), processors()
    world.Allreduce(mine, total)
    world.Barrier()
    seconds, after = time.monotonic() - began, processors()
    if seconds < best:
        best, idle = seconds, (after[1] - before[1]) / max(1, after[0] - before[0])
assert (total == sum(range(world.size))).all()
if world.rank == 0:
    print(*(f"{rank} {chip} {host}" for rank, chip, host in places or []), sep="\n")
    print(f"seconds {best:.3f} idle {idle:.2f}", flush=True)
