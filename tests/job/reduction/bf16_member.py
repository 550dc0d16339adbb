"""As mpi_member, with parts that travel as bf16: whole numbers so small that bf16 holds their sums exactly.

Besides the operations, a member can be killed at `1:add:3` (rank, how many slices it has added before), which is
between the two messages of a piece, and at `1:added:3`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence

import numpy as np

from meshmend.job.reduction import bf16
from meshmend.job.reduction.base import WireFormat
from tests.job.courier import mpi_member
from tests.job.courier.mpi_member import LANES, ROUNDS, Toy

SIZE, PIECE = 300_002, 1 << 17
"""Five pieces make a sum; slices differ in length where there are three members."""
PACKED = -(-SIZE // 4)
"""In the place of so many int64."""


def lane_values(state: np.ndarray, round: int, lane: int) -> np.ndarray:
    return (state * 31 + np.int64(round * 1000 + lane)) % 31


def after(state: np.ndarray, total: np.ndarray) -> np.ndarray:
    return (state * 7 + total) % 1009


def undisturbed() -> np.ndarray:
    state = np.arange(SIZE, dtype=np.int64)
    for round in range(ROUNDS):
        state = after(state, np.sum([lane_values(state, round, lane) for lane in range(LANES)], axis=0))
    return state


class Bf16Toy(Toy):
    """Adds its lanes as whole numbers and rounds them when it is asked for its part."""

    def __init__(self, rank: int, ranks: int) -> None:
        super().__init__(rank, ranks)
        self.current = np.arange(SIZE, dtype=np.int64)
        wire = PACKED + LANES + ranks + 1
        self.sent, self.totals = np.zeros(wire, np.int64), np.zeros((2, wire), np.int64)

    def begin(self, round: int, lanes: tuple[int, ...]) -> None:
        self.catch_up(round - 1)
        self.sent[:] = 0
        if round < ROUNDS:
            values = np.zeros(SIZE, np.float32)
            for lane in lanes:
                values += lane_values(self.current, round, lane)
                self.sent[PACKED + lane] += 1
            bf16.put(values, self.sent[:PACKED].view(np.uint16)[:SIZE])
        self.sent[-1] = round >= ROUNDS
        self.sent[PACKED + LANES + self.rank] = 1 + int(self.current.sum())

    def catch_up(self, round: int) -> None:
        if self.applied < round:
            values = np.empty(SIZE, np.float32)
            bf16.take(self.totals[round % 2, :PACKED].view(np.uint16)[:SIZE], values)
            self.current, self.applied = after(self.current, values.astype(np.int64)), round

    @property
    def wire(self) -> WireFormat:
        return WireFormat(bf16.Bf16, len(self.sent), PACKED)

    def read(self, total: np.ndarray) -> mpi_member.Total:
        return mpi_member.read(total[PACKED:])


def main(folder: str, wanted: int, kills: list[str]) -> None:
    from mpi4py import MPI

    from meshmend.job.transport.library_mpi import LibraryMpi

    LibraryMpi.piece = PIECE
    seen: Counter[str] = Counter()
    rank = MPI.COMM_WORLD.Get_rank()
    real = bf16.add

    def die(point: str) -> None:
        if f"{rank}:{point}:{seen[point]}" in kills:
            os.kill(os.getpid(), signal.SIGKILL)
        seen[point] += 1

    def add(parts: Sequence[np.ndarray], out: np.ndarray) -> None:
        die("add")
        real(parts, out)
        die("added")

    bf16.add = add
    mpi_member.main(folder, wanted, kills, Bf16Toy)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
