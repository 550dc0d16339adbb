"""One member of a group that sums by every transport: `mpirun … python -m tests.job.transport.mpi_member FOLDER`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from mpi4py import MPI

from meshmend.errors import JobError
from meshmend.job.reduction.base import WireFormat
from meshmend.job.reduction.bf16 import Bf16
from meshmend.job.reduction.registry import KINDS
from meshmend.job.shm.records import Outcome, Task
from meshmend.job.transport.base import Group, Hello, Numbers, Transport
from meshmend.job.transport.choose import choose
from meshmend.job.transport.library_mpi import LibraryMpi
from meshmend.job.transport.mesh_mpi import MeshMpi, Placing
from meshmend.job.transport.shared_memory import SharedMemory
from tests.processes import wait_for

SIZE = 70_001


class Port:
    """A worker with memory of its own: whole numbers that every kind adds exactly."""

    several = False
    opens = Outcome.DONE
    """Whether it can see the buffers of the others."""

    def __init__(self, wire: WireFormat, rank: int, mesh: Placing | None = None) -> None:
        self.wire, self.mesh = wire, mesh
        self.used = self.tail = SIZE - 1
        self.part: Numbers = (np.arange(SIZE) % 7 + rank).astype(wire.kind.dtype)
        if wire.head:
            halves = ((np.arange(2 * wire.head) % 5 + rank).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            self.part[: wire.head].view(np.uint16)[:] = halves
        self.totals = np.zeros((2, SIZE), wire.kind.dtype)

    def total(self, round: int) -> Numbers:
        return self.totals[round % 2]

    def neighbours(self, members: Sequence[Hello]) -> Sequence[Port]:
        raise AssertionError(f"{members} are on other hosts")

    def use_worker(self, task: Task, round: int, look: object, members: Sequence[Hello]) -> Outcome:
        del look, members
        assert task is Task.OPEN and round == 0
        return self.opens

    def begun(self, round: int) -> bool:
        return round >= 0

    def nap(self, seconds: float) -> None:
        raise AssertionError(f"all have begun, and nobody sleeps for {seconds} s")

    def before(self, point: str) -> None:
        pass

    def has(self, numbers: int) -> bool:
        return numbers >= 0

    def complete(self, numbers: int, look: Callable[[], None] = lambda: None) -> None:
        pass


def checked(transport: Transport, port: Port, others: Sequence[Port], here: int) -> None:
    """Both ways to a total give the sum, and after the first half of one this member has its slice."""
    wanted = np.zeros(SIZE, port.wire.kind.dtype)
    port.wire.combine([other.part for other in others], wanted)
    transport.all_reduce(0)
    assert port.total(0).tobytes() == wanted.tobytes()
    mine = slice(SIZE * here // len(others), SIZE * (here + 1) // len(others))
    transport.reduce_scatter(1)
    assert port.total(1)[mine].tobytes() == wanted[mine].tobytes()
    transport.all_gather(1)
    assert port.total(1).tobytes() == wanted.tobytes()


def main(folder: str) -> None:
    comm, look = MPI.COMM_WORLD, lambda: None
    rank, ranks = comm.Get_rank(), comm.Get_size()
    LibraryMpi.piece = 1 << 15
    apart = [Hello(other, host=other) for other in range(ranks)]
    for kind in KINDS:
        wire = WireFormat(kind, SIZE, 20_003 if kind is Bf16 else 0)
        ports = [Port(wire, other) for other in range(ranks)]
        chosen = choose(Group(comm, apart, rank, ports[rank], look))
        assert isinstance(chosen, LibraryMpi)
        checked(chosen, ports[rank], ports, rank)
        placed = Port(wire, rank, Placing(f"1x{ranks}", "trees"))
        chosen = choose(Group(comm, apart, rank, placed, look))
        assert isinstance(chosen, MeshMpi)
        checked(chosen, placed, ports, rank)
    port = Port(WireFormat(KINDS[0], SIZE), rank)
    port.neighbours = lambda _: [port] * ranks  # type: ignore[method-assign]
    for opens in (Outcome.DONE, Outcome.CANNOT):
        port.opens = opens if rank == 1 else Outcome.DONE
        together = choose(Group(comm, [Hello(other, host=1) for other in range(ranks)], rank, port, look))
        assert isinstance(together, SharedMemory)
        assert together.sliced is (opens is Outcome.DONE), "all of them, or none"
    try:
        odd = [Hello(other, host=other, layout=int(other == 1)) for other in range(ranks)]
        choose(Group(comm, odd, rank, port, look))
    except JobError as error:
        assert "worker 1 " in str(error)
    else:
        raise AssertionError("other layouts cannot be summed")
    Path(folder, f"{rank}.right").touch()
    # Not with a barrier: to whoever is still within one, a member that has left it and ended has failed.
    wait_for(lambda: all(Path(folder, f"{one}.right").exists() for one in range(ranks)))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
