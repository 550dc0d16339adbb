"""One member of a real MPI job for tests: `mpirun … python -m tests.job.courier.mpi_member FOLDER KILLS`.

The worker is a few lines of integer arithmetic in this very process; the courier's side is the real one. KILLS is a
list such as `1:Reduce:3` (rank, kind of operation, how many of that kind before) at which a member kills itself.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from meshmend.job.protocol import MemberState, Operation, Total, run_member
from meshmend.job.reduction.base import WireFormat
from meshmend.job.reduction.float32 import Float32
from meshmend.job.shm.records import Way, Where
from meshmend.job.transport.base import Buffers, Hello

LANES, ROUNDS, SIZE = 8, 6, 300_000


def lane_values(state: np.ndarray, round: int, lane: int) -> np.ndarray:
    return (state * 31 + np.int64(round * 1000 + lane)) % 65537


def after(state: np.ndarray, total: np.ndarray) -> np.ndarray:
    return (state * 7 + total) % 1_000_003


def undisturbed() -> np.ndarray:
    state = np.arange(SIZE, dtype=np.int64)
    for round in range(ROUNDS):
        state = after(state, np.sum([lane_values(state, round, lane) for lane in range(LANES)], axis=0))
    return state


def read(footer: np.ndarray) -> Total:
    digests = {rank: int(value) for rank, value in enumerate(footer[LANES:-1]) if value}
    return Total(footer[:LANES].tolist(), digests, int(footer[-1]))


class Toy:
    """A worker that computes at once."""

    generation = 1
    several = False

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.current, self.applied = np.arange(SIZE, dtype=np.int64), -1
        wire = SIZE + LANES + ranks + 1
        self.sent = np.zeros(wire, np.int64)
        self.totals = np.zeros((2, wire), np.int64)

    def begin(self, round: int, lanes: tuple[int, ...]) -> None:
        self.catch_up(round - 1)
        self.sent[:] = 0
        if round < ROUNDS:
            for lane in lanes:
                self.sent[:SIZE] += lane_values(self.current, round, lane)
                self.sent[SIZE + lane] += 1
        self.sent[-1] = round >= ROUNDS
        self.sent[SIZE + LANES + self.rank] = 1 + int(self.current.sum())

    def catch_up(self, round: int) -> None:
        if self.applied < round:
            self.current, self.applied = after(self.current, self.totals[round % 2, :SIZE]), round

    def ready(self, seconds: float) -> bool:
        return seconds >= 0

    @property
    def part(self) -> np.ndarray:
        return self.sent

    @property
    def wire(self) -> WireFormat:
        return WireFormat(Float32, len(self.sent))

    @property
    def used(self) -> int:
        return len(self.sent)

    tail = used

    def total(self, round: int) -> np.ndarray:
        return self.totals[round % 2]

    def place(self, round: int, way: Way, look: Callable[[], None]) -> None:
        del round, look
        assert way is not Way.DEVICE

    def has(self, numbers: int) -> bool:
        return numbers >= 0

    def complete(self, numbers: int, look: Callable[[], None] = lambda: None) -> None:
        pass

    def gathered(self, numbers: int) -> None:
        pass

    def placed(self, round: int, where: Where) -> None:
        del round
        assert where is Where.BUFFER

    def take_total(self, round: int, total: np.ndarray) -> None:
        self.total(round)[:] = total.view(np.int64)

    def exported(self, round: int) -> np.ndarray:
        return self.total(round)

    def read(self, total: np.ndarray) -> Total:
        return read(total[SIZE:])

    def state(self, round: int, *, on_device: bool = False) -> np.ndarray:
        assert not on_device
        self.catch_up(round)
        return self.current.view(np.uint8)

    def adopt(self, round: int, state: np.ndarray) -> None:
        self.current, self.applied = state.view(np.int64).copy(), round

    def fetch(self, rank: int) -> None:
        raise AssertionError(f"the memory of {rank} cannot be seen")

    def hello(self) -> Hello:
        return Hello(self.rank, host=self.rank)

    mesh = None

    def neighbours(self, members: Sequence[Hello]) -> Sequence[Buffers]:
        assert [member.rank for member in members] == [self.rank], "the memory of others cannot be seen"
        return [self]

    def begun(self, round: int) -> bool:
        return round < 0  # it cannot be seen

    def nap(self, seconds: float) -> None:
        time.sleep(seconds)

    def before(self, point: str) -> None:
        pass


def main(folder: str, wanted: int, kills: list[str], kind: type[Toy] = Toy) -> None:
    seen: Counter[str] = Counter()
    # Not at the top: a test that borrows the arithmetic must not become an MPI process itself.
    from mpi4py import MPI

    from meshmend.job.courier.mpi import Mpi

    rank, ranks = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()

    def before(operation: Operation) -> None:
        name = type(operation).__name__
        if f"{rank}:{name}:{seen[name]}" in kills:
            os.kill(os.getpid(), signal.SIGKILL)
        seen[name] += 1

    toy, memory = kind(rank, ranks), MemberState(rank)
    ended = Path(folder, "ended")
    carrier = Mpi(toy, LANES, over=ended.exists)
    carrier.drive(run_member(memory, LANES, wanted), before)
    ended.touch()
    if memory.active:
        np.save(Path(folder, f"{rank}.npy"), toy.current)
    Path(folder, f"{rank}.out").write_text(f"{memory.active} {carrier.world.Get_size()}")
    os._exit(0)  # MPI_Finalize can hang after failures


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
