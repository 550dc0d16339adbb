"""Every transport gives the same totals, by one collective or by its two halves."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from meshmend.job.reduction.base import WireFormat
from meshmend.job.reduction.bf16 import Bf16
from meshmend.job.reduction.float32 import Float32
from meshmend.job.reduction.registry import KINDS
from meshmend.job.shm.sliced import slices_of_pages
from meshmend.job.transport import crew
from meshmend.job.transport.base import Group, Hello, Numbers, slices
from meshmend.job.transport.crew import Crew
from meshmend.job.transport.pipeline import Pipeline
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
        transport = SharedMemory(memories, position, lambda *_: void(barrier.wait(30)), points[position].append)
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


@pytest.mark.parametrize("members", [2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_totals_stay_in_slices_where_workers_read_them(kind: type, members: int) -> None:
    size = 7 * 1024 + 100
    wire = WireFormat(kind, size, 2500 if kind is Bf16 else 0)
    memories = [Memory(wire, seed) for seed in range(members)]
    wanted = np.zeros(size, kind.dtype)
    wire.combine([memory.part for memory in memories], wanted)
    barrier, tail = threading.Barrier(members), size - 7

    def member(position: int) -> None:
        transport = SharedMemory(memories, position, lambda *_: void(barrier.wait(30)), tail=tail)
        assert transport.sliced
        transport.all_reduce(0)

    threads = [threading.Thread(target=member, args=[position]) for position in range(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    cut = slices_of_pages(tail, members, wire)
    for memory, own in zip(memories, cut, strict=True):
        for position, one in enumerate(cut):
            there = memory.totals[0][one].tobytes()
            assert there == (wanted[one].tobytes() if one == own else bytes(len(there))), f"slice {position}"
        assert memory.totals[0][cut[-1].stop :].tobytes() == wanted[cut[-1].stop :].tobytes()


class Members:
    """Barriers that nobody has to wait at."""

    def __init__(self, members: int) -> None:
        self.members, self.came = members, [0] * members

    def begin(self, position: int) -> Arrival:
        self.came[position] += 1
        return Arrival(self, self.came[position])


@dataclass(frozen=True)
class Arrival:
    members: Members
    number: int

    def Test(self) -> bool:
        return min(self.members.came) >= self.number


class Slow(Memory):
    """A worker whose part comes piece by piece, and that sees how much of its total is there."""

    mesh = None

    def __init__(self, wire: WireFormat, seed: int) -> None:
        super().__init__(wire, seed)
        self.whole, self.part = self.part, np.zeros_like(self.part)
        self.there, self.seen = 0, list[tuple[int, bool]]()
        self.wanted = np.zeros(0)
        self.points: list[str] = []

    def has(self, numbers: int) -> bool:
        return self.there >= numbers

    def complete(self, numbers: int, look: Callable[[], None] = lambda: None) -> None:
        """A little more than was asked for."""
        look()
        self.part[: numbers + 10] = self.whole[: numbers + 10]
        self.there = numbers + 10

    def gathered(self, numbers: int) -> None:
        self.seen.append((numbers, self.total(0)[:numbers].tobytes() == self.wanted[:numbers].tobytes()))

    def begun(self, round: int) -> bool:
        return round < 0

    def nap(self, seconds: float) -> None:
        time.sleep(seconds)

    def spent(self, seconds: float) -> None:
        assert seconds >= 0

    def before(self, point: str) -> None:
        self.points.append(point)


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_pieces_are_added_as_they_come(kind: type, members: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pipeline, "piece", 1200)
    wire = WireFormat(kind, SIZE, 400 if kind is Bf16 else 0)
    memories, barriers = [Slow(wire, seed) for seed in range(members)], Members(members)
    wanted = np.zeros(SIZE, kind.dtype)
    wire.combine([memory.whole for memory in memories], wanted)

    def member(position: int) -> None:
        mine = memories[position]
        mine.wanted = wanted
        begin, crew = partial(barriers.begin, position), Crew(1, cores=1)
        Pipeline(memories, position, begin, mine, lambda: None, crew).all_reduce(0)  # type: ignore[arg-type]

    threads = [threading.Thread(target=member, args=[position]) for position in range(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for memory in memories:
        assert memory.totals[0].tobytes() == wanted.tobytes()
        assert memory.seen == [(300, True), (600, True), (900, True), (SIZE, True)]
        assert memory.points == ["add", "take"]


@pytest.mark.parametrize(
    ("hosts", "layouts", "size", "pieces"),
    [
        ([1, 1], [3, 3], 600, True),
        ([1, 1], [3, 3], 599, False),
        ([1, 1], [2, 2], 600, False),
        ([1, 2], [3, 3], 600, False),
    ],
)
def test_large_messages_from_devices_of_one_host_go_in_pieces(
    hosts: list[int], layouts: list[int], size: int, pieces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pipeline, "piece", 1200)
    memories = [Slow(WireFormat(Float32, size), seed) for seed in range(2)]
    port = memories[0]
    port.neighbours = lambda members: memories[: len(members)]  # type: ignore[attr-defined]
    members = [Hello(rank, *facts) for rank, facts in enumerate(zip(hosts, layouts, strict=True))]
    made = Pipeline.make(Group(None, members, 0, port, lambda: None))  # type: ignore[arg-type]
    assert (made is not None) is pieces


def test_a_crew_has_no_more_hands_than_idle_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    now, idle = [0.0], [0.0]
    monkeypatch.setattr(crew, "_idle", lambda: idle[0])
    monkeypatch.setattr(crew.time, "monotonic", lambda: now[0])

    def hands(made: Crew, busy: float, cores: int = 16) -> int:
        now[0] += 1.0
        idle[0] += cores - busy
        return made.hands

    made = Crew(2, cores=16)
    assert [hands(made, busy) for busy in (2, 16, 14, 12, 0)] == [8, 1, 2, 3, 8]
    idle[0] += 100
    assert made.hands == 8, "too short a time says nothing"
    assert hands(Crew(2, cores=2), 0, 2) == hands(Crew(4, cores=2), 2, 2) == 1


def test_a_crew_does_every_number_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "STRETCH", 64)
    made = Crew(1, cores=4)
    monkeypatch.setattr(Crew, "hands", 3)
    counts = np.zeros(1000, int)

    def work(here: slice) -> None:
        counts[here] += 1

    made.divide(work, slice(5, 999), 4)
    assert counts[5:999].tolist() == [1] * 994 and counts.sum() == 994
    made.divide(work, slice(0, 3), 4)
    assert counts[:3].tolist() == [1] * 3


def void(_: object) -> None:
    """Of a call, nothing but its effect."""


def test_a_scattered_total_is_whole_only_where_it_is_this_members() -> None:
    memories = [Memory(WireFormat(Float32, SIZE), seed) for seed in range(3)]
    SharedMemory(memories, 1, lambda *_: None).reduce_scatter(0)
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
    output = run_mpi(ranks, [sys.executable, "-m", "tests.job.transport.mpi_member", str(tmp_path)], tmp_path)
    assert len([*tmp_path.glob("*.right")]) == ranks, output
