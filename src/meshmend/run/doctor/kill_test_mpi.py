"""One process of the kill test: three of them sum, one is killed in the middle, and the others must continue.

`mpirun … python -m meshmend.run.doctor.kill_test_mpi FOLDER`. Each survivor writes what it saw to FOLDER/RANK.json. It
recovers as a courier does (`job/courier/mpi.py`): revoke, shrink, agree, sum again; in pieces, polling instead of
spinning.
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

from meshmend.base.clocks import KILL_TEST, KILL_TEST_DELAY
from meshmend.job.faults import Fault
from meshmend.job.faults.kinds import KILL
from meshmend.job.transport.base import PIECE, patient
from meshmend.run.doctor.kill_test import VICTIM

PIECES = 4


def total(group: MPI.Comm, rank: int) -> int:
    """Sum one bit per rank: the total says which ranks took part, and equal pieces say that it is complete."""
    part = np.full(PIECES * PIECE // 8, 1 << rank, np.int64)
    whole = np.zeros_like(part)
    step = PIECE // 8
    patient(group.Iallreduce(part[:step], whole[:step], MPI.SUM))
    for begin in range(step, len(part), step):
        group.Allreduce(part[begin : begin + step], whole[begin : begin + step], MPI.SUM)
    return int(whole[0]) if (whole == whole[0]).all() else -1


def die(folder: Path) -> None:
    """Record the time and die, wherever the sums are at that moment."""
    (folder / "killed").write_text(str(time.monotonic_ns()))
    assert KILL.inside is not None
    KILL.inside(Fault(rank=VICTIM, step=0), os.getpid())


def take_part(folder: Path) -> None:
    """Sum until a process dies, repair the group, and sum once more."""
    group: MPI.Comm = MPI.COMM_WORLD
    group.Set_errhandler(MPI.ERRORS_RETURN)
    rank, sums, repaired = group.Get_rank(), 0, 0
    while True:
        try:
            saw = total(group, rank)
            if repaired:
                break
            sums += 1
            if rank == VICTIM and sums == 1:
                threading.Timer(KILL_TEST_DELAY, die, [folder]).start()
        except MPI.Exception:
            group.Revoke()
            group = group.Shrink()
            group.Set_errhandler(MPI.ERRORS_RETURN)
            agreed = group.Agree(1 | group.Get_rank() << 1)
            repaired += 1
    seen = {"at": time.monotonic_ns(), "saw": saw, "agreed": agreed, "size": group.Get_size(), "sums": sums}
    fresh = folder / f"{rank}.new"
    fresh.write_text(json.dumps(seen))
    fresh.replace(folder / f"{rank}.json")
    with contextlib.suppress(MPI.Exception):
        group.Agree(1)  # no process leaves while another still sums


if __name__ == "__main__":
    signal.alarm(KILL_TEST)  # ends this process even if mpirun and the doctor are gone
    try:
        take_part(Path(sys.argv[1]))
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)  # the others are not told of a non-zero status
    os._exit(0)  # MPI_Finalize can hang after failures
