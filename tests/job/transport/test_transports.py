"""Every transport gives the same totals, by one collective or by its two halves."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from meshmend.job.reduction.base import WireFormat
from meshmend.job.reduction.bf16 import Bf16
from meshmend.job.reduction.float32 import Float32
from meshmend.job.reduction.registry import KINDS
from meshmend.job.transport.base import Numbers, slices
from meshmend.job.transport.shared_memory import SharedMemory
from tests.processes import run_mpi

SIZE = 1001


class Memory:
    """What one worker has in shared memory."""

    def __init__(self, wire: WireFormat, seed: int) -> None:
        self.wire = wire
        random = np.random.default_rng(seed)
        self.part: Numbers = random.integers(0, 100, wire.size).astype(wire.kind.dtype)
        if wire.head:
            bits = random.normal(size=2 * wire.head).astype(np.float32).view(np.uint32) >> 16
            self.part[: wire.head].view(np.uint16)[:] = bits
        self.totals = np.zeros((2, wire.size), wire.kind.dtype)

    def total(self, round: int) -> Numbers:
        return self.totals[round % 2]


@pytest.mark.parametrize("members", [1, 2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_members_of_one_host_add_slices_of_each_other(kind: type, members: int) -> None:
    wire = WireFormat(kind, SIZE, 400 if kind is Bf16 else 0)
    memories = [Memory(wire, seed) for seed in range(members)]
    wanted = np.zeros(SIZE, kind.dtype)
    wire.combine([memory.part for memory in memories], wanted)
    barrier, points = threading.Barrier(members), [list[str]() for _ in range(members)]

    def member(position: int) -> None:
        transport = SharedMemory(memories, position, lambda: void(barrier.wait(30)), points[position].append)
        for round in range(3):
            transport.all_reduce(round)

    threads = [threading.Thread(target=member, args=[position]) for position in range(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for memory, seen in zip(memories, points, strict=True):
        assert memory.totals[0].tobytes() == memory.totals[1].tobytes() == wanted.tobytes()
        assert seen == ["add", "take"] * 3


def void(_: object) -> None:
    """Of a call, nothing but its effect."""


def test_a_scattered_total_is_whole_only_where_it_is_this_members() -> None:
    memories = [Memory(WireFormat(Float32, SIZE), seed) for seed in range(3)]
    SharedMemory(memories, 1, lambda: None).reduce_scatter(0)
    mine = slices(0, SIZE, 3)[1]
    total = memories[1].total(0)
    assert (total[mine] == sum(memory.part[mine] for memory in memories)).all()  # type: ignore[misc]
    total[mine] = 0
    assert not total.any()


@pytest.mark.parametrize(("begin", "end", "members"), [(0, 10, 3), (5, 5, 2), (3, 100, 7), (0, 2, 5)])
def test_slices_cover_a_stretch_once(begin: int, end: int, members: int) -> None:
    found = [number for one in slices(begin, end, members) for number in range(one.start, one.stop)]
    assert found == list(range(begin, end)) and len(slices(begin, end, members)) == members


@pytest.mark.parametrize("ranks", [2, 3])
def test_between_processes(tmp_path: Path, ranks: int) -> None:
    pytest.importorskip("mpi4py")
    output = run_mpi(ranks, [sys.executable, "-m", "tests.job.transport.mpi_member", str(tmp_path)], tmp_path, 120)
    assert len([*tmp_path.glob("*.right")]) == ranks, output
