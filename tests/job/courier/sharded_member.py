"""One member of a sharded job on real MPI: `mpirun … python -m tests.job.courier.sharded_member FOLDER WANTED KILLS`.

The worker is a `Holder` with Adam in this very process; KILLS is a list such as `1:Meet:3` (rank, kind of operation,
how many of that kind before), or `1:Meet:3+` for after it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from meshmend.job.protocol import Total
from meshmend.job.reduction.base import WireFormat
from meshmend.job.reduction.exact import ExactSum
from meshmend.job.sharding import ShardedState, Sharding, run_sharded_member
from meshmend.job.slices.holder import Copy, Totals
from meshmend.job.transport.base import Hello
from tests.job.slices.test_holder import ADAM, LEAVES, gradient, start
from tests.job.slices.test_holder import LANES as LANES
from tests.job.slices.test_holder import alone as alone

ROUNDS, SLICES = 6, 4
DIGEST = 2**30


class HolderWorker:
    """A worker that computes at once."""

    generation = 1
    mesh = None

    def __init__(self, memory: ShardedState, ranks: int) -> None:
        from meshmend.job.slices.holder import Holder

        self.memory, self.rank, self.ranks = memory, memory.rank, ranks
        self.holder = Holder(LEAVES, start(), ADAM, LANES, SLICES)
        self.own = self.holder.exact.wire()
        self.have: set[int] = set()
        self.part_of, self.judged, self.step = -1, -1, 0
        self.footer = np.zeros(LANES + ranks + 1, np.int32)
        self.wire = WireFormat(ExactSum, len(self.own) + len(self.footer))

    @property
    def bounds(self) -> tuple[int, ...]:
        return self.holder.slicing.bounds

    @property
    def stretches(self) -> tuple[int, ...]:
        return self.holder.slicing.bounds

    def begin(self, round: int, lanes: tuple[int, ...]) -> None:
        self.holder.hold(self.memory.held)
        self.memory.leaving = round >= ROUNDS
        wanted = set() if self.memory.leaving else set(lanes)
        if self.part_of != round or not self.have <= wanted:
            self.own, self.have, self.part_of = self.holder.exact.wire(), set(), round
        for lane in sorted(wanted - self.have):
            self.holder.exact.add(self.own, gradient(self.holder.weights, self.step, lane))
            self.have.add(lane)
        self.footer[:] = 0
        self.footer[sorted(self.have)] = 1
        self.footer[LANES + self.rank] = 1 + int(self.holder.weights.view(np.uint32).sum() % DIGEST)
        self.footer[-1] = self.memory.leaving

    def ready(self, seconds: float) -> bool:
        return seconds >= 0

    @property
    def part(self) -> np.ndarray:
        return self.own[: self.holder.exact.size]

    @property
    def rest(self) -> np.ndarray:
        return np.concatenate([self.own[self.holder.exact.size :], self.footer])

    def total(self, round: int) -> np.ndarray:
        self.sum_of, self.sum = round, np.zeros(len(self.part) + len(self.rest), np.int32)
        return self.sum

    def read(self, total: np.ndarray) -> Total:
        gradients, notes, footer = np.split(total, [len(self.part), len(total) - len(self.footer)])
        unit, bounds = self.holder.exact.factors[1], self.bounds
        sums = {number: gradients[bounds[number] : bounds[number + 1]] for number in self.memory.held}
        self.holder.totals = Totals(self.sum_of, sums, notes.reshape(len(self.holder.exact.leaf_of), -1), unit)
        digests = {rank: int(value) for rank, value in enumerate(footer[LANES:-1]) if value}
        return Total(footer[:LANES].tolist(), digests, int(footer[-1]))

    def update(self, round: int, slices: Collection[int]) -> None:
        self.holder.update(round, slices)
        if round > self.judged:
            self.judged, self.step = round, self.step + (self.holder.judge() is None)

    def digests(self) -> dict[int, tuple[int, int]]:
        held = self.memory.held if self.memory.active else ()
        return {number: self.holder.digests(number) for number in held}

    def agree(self, digests: dict[int, tuple[int, int]]) -> None:
        self.holder.agree(digests)

    def weights(self, number: int) -> np.ndarray:
        return self.holder.of(number)

    def receive(self, number: int, weights: np.ndarray) -> None:
        self.holder.receive(number, weights)

    def before(self, point: str) -> None:
        del point

    def neighbours(self, members: Collection[Hello]) -> list[HolderWorker]:
        """Those of a host: each has one of its own, so this is the last that is left."""
        assert [member.rank for member in members] == [self.rank]
        return [self]

    def add(self, round: int, slices: Collection[int], parts: list[HolderWorker]) -> Total:
        assert parts == [self] and slices == self.memory.held
        total = self.total(round)
        total[:] = np.concatenate([self.part, self.rest])
        return self.read(total)

    def copy_weights(self, givers: dict[int, Hello]) -> None:
        assert not givers

    def gives(self, slices: Collection[int]) -> None:
        del slices

    def copies_of(self, slices: Collection[int], look: Any) -> dict[int, np.ndarray]:
        look()
        return {number: self.copy_of(number) for number in slices}

    def drop_copies(self) -> None:
        pass

    def fill_from(self, number: int, member: Hello, look: Any) -> None:
        del look
        raise AssertionError(f"slice {number} of worker {member.rank}: each is on a host of its own")

    def copy_of(self, number: int) -> np.ndarray:
        copy = self.holder.copies[number]
        head = np.array([copy.version, copy.state["count"]], np.int64)
        return np.concatenate([one.view(np.uint8) for one in (head, copy.state["m"], copy.state["v"])])

    def fill(self, number: int, copy: np.ndarray, look: Any) -> None:
        look()
        version, count = copy[:16].view(np.int64)
        m, v = np.split(copy[16:].view(np.float32), 2)
        self.holder.fill(number, Copy({"m": m, "v": v, "count": np.asarray(count)}, int(version)))

    def state(self, round: int) -> np.ndarray:
        del round
        version, weights, grid = self.holder.given()
        head = np.array([version, self.judged, self.step, len(weights)], np.int64)
        return np.concatenate([one.view(np.uint8) for one in (head, weights, grid)])

    def adopt(self, round: int, state: np.ndarray) -> None:
        del round
        version, self.judged, self.step, size = state[:32].view(np.int64).tolist()
        weights, grid = state[32 : 32 + 4 * size].view(np.float32), state[32 + 4 * size :].view(np.int16)
        self.holder.adopt(version, weights, grid)

    def hello(self) -> Hello:
        return Hello(self.rank, host=self.rank)


def main(folder: str, wanted: int, kills: list[str]) -> None:
    seen: Counter[str] = Counter()
    from mpi4py import MPI

    from meshmend.job.courier.sharded_mpi import ShardedMpi

    rank, ranks = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()

    def die_if(point: str) -> None:
        if point in kills:
            os.kill(os.getpid(), signal.SIGKILL)

    class Killed(ShardedMpi):
        def carry_out(self, operation: Any) -> object:
            name = type(operation).__name__
            die_if(f"{rank}:{name}:{seen[name]}")
            result = super().carry_out(operation)
            die_if(f"{rank}:{name}:{seen[name]}+")
            seen[name] += 1
            return result

    memory = ShardedState(rank)
    worker = HolderWorker(memory, ranks)
    ended = Path(folder, "ended")
    carrier = Killed(worker, LANES, SLICES, ranks)
    carrier.over = ended.exists
    carrier.drive(run_sharded_member(memory, Sharding(SLICES, 1, LANES, wanted, fills=2)))
    ended.touch()
    if memory.active:
        np.save(Path(folder, f"{rank}.npy"), worker.holder.weights)
    os._exit(0)  # MPI_Finalize can hang after failures


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
