"""One of three processes that sum; one is killed in the middle, and the others must be able to go on.

`mpirun … python -m meshmend.run.doctor.mpi FOLDER`. Whoever lives writes what it saw to FOLDER/RANK.json. The
way through is the courier's (`train/mpi.py`): revoke, shrink, agree, sum again, in pieces, looking instead of spinning.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from meshmend.job.courier.mpi import PIECE, patient
from meshmend.job.faults import Fault
from meshmend.job.faults.process import KILL
from meshmend.run.doctor.kill_test import SECONDS, VICTIM

PIECES = 4
DELAY = 0.1
"""Seconds of undisturbed sums before the kill."""


def total(group: MPI.Comm, rank: int) -> int:
    """Sum one bit a rank: the total says who took part, and that each piece holds the same says it is whole."""
    part = np.full(PIECES * PIECE // 8, 1 << rank, np.int64)
    whole = np.zeros_like(part)
    step = PIECE // 8
    patient(group.Iallreduce(part[:step], whole[:step], MPI.SUM))
    for begin in range(step, len(part), step):
        group.Allreduce(part[begin : begin + step], whole[begin : begin + step], MPI.SUM)
    return int(whole[0]) if (whole == whole[0]).all() else -1


def die(folder: Path) -> None:
    """Note the time and be killed, wherever the sums are just now."""
    (folder / "killed").write_text(str(time.monotonic_ns()))
    assert KILL.inside is not None
    KILL.inside(Fault(rank=VICTIM, step=0), os.getpid())


def take_part(folder: Path) -> None:
    """Sum until somebody dies, mend the group, sum once more."""
    group: MPI.Comm = MPI.COMM_WORLD
    group.Set_errhandler(MPI.ERRORS_RETURN)
    rank, sums, mended = group.Get_rank(), 0, 0
    while True:
        try:
            saw = total(group, rank)
            if mended:
                break
            sums += 1
            if rank == VICTIM and sums == 1:
                threading.Timer(DELAY, die, [folder]).start()
        except MPI.Exception:
            group.Revoke()
            group = group.Shrink()
            group.Set_errhandler(MPI.ERRORS_RETURN)
            agreed = group.Agree(1 | group.Get_rank() << 1)
            mended += 1
    seen = {"at": time.monotonic_ns(), "saw": saw, "agreed": agreed, "size": group.Get_size(), "sums": sums}
    fresh = folder / f"{rank}.new"
    fresh.write_text(json.dumps(seen))
    fresh.replace(folder / f"{rank}.json")
    with contextlib.suppress(MPI.Exception):
        group.Agree(1)  # nobody leaves while another still sums


if __name__ == "__main__":
    signal.alarm(SECONDS)  # also when nobody is left to end this process
    try:
        take_part(Path(sys.argv[1]))
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)  # the others are not told of a non-zero status
    os._exit(0)  # MPI_Finalize can hang after failures
