"""An MPI program for the testbed: where its ranks are, and how long the library's own all-reduce takes.

`allreduce.py BYTES [TIMES]`: each rank prints its chip and host; rank 0 prints the best time of an all-reduce.
"""

from __future__ import annotations

import os
import socket
import sys
import time

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
count = int(sys.argv[1]) // 4
places = world.gather((world.rank, os.environ.get("MESHMEND_CHIP"), socket.gethostname()))
mine, total = np.full(count, world.rank, np.float32), np.empty(count, np.float32)
best = float("inf")
for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 1):
    world.Barrier()
    began = time.monotonic()
    world.Allreduce(mine, total)
    world.Barrier()
    best = min(best, time.monotonic() - began)
assert (total == sum(range(world.size))).all()
if world.rank == 0:
    print(*(f"{rank} {chip} {host}" for rank, chip, host in places or []), sep="\n")
    print(f"seconds {best:.3f}", flush=True)
