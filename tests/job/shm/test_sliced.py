"""Totals in slices, in the buffers of several workers: read by each of them, whoever dies, or not at all."""

from __future__ import annotations

import gc
import os
import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshmend.base.mapped import PAGE
from meshmend.base.processes import Identity
from meshmend.job.reduction.base import WireFormat
from meshmend.job.reduction.float32 import Float32
from meshmend.job.shm import create_as_agent, open_as_courier, open_as_worker
from meshmend.job.shm.buffers import make_buffers
from meshmend.job.shm.mailbox import CourierSide
from meshmend.job.shm.memory import SharedMemory
from meshmend.job.shm.records import Outcome, Where
from meshmend.job.shm.sliced import Overtaken, SlicedTotals, slices_of_pages
from tests.job.shm.conftest import home as home

RUN, FOOTER = "sliced", 9
EACH = PAGE // 4
"""Numbers of a page."""


class Member:
    """A worker and its courier."""

    def __init__(self, rank: int, size: int) -> None:
        agent = create_as_agent(RUN, rank).agent
        agent.worker, agent.ranks = Identity.of(os.getpid()), 3
        self.rank, self.size, self.segment = rank, size, open_as_worker(RUN, rank)
        make_buffers(self.segment.files, self.segment.worker, WireFormat(Float32, size + FOOTER), 0)
        self.totals = SlicedTotals(self.segment, FOOTER)
        self.courier = open_as_courier(RUN, rank)
        self.courier.courier.world = 1
        self.side = CourierSide(self.courier)

    @property
    def who(self) -> tuple[int, int]:
        return self.rank, self.segment.birth

    def add(self, round: int, members: int, position: int) -> None:
        """What the courier does: its slice, and what is in none."""
        self.side.begin_total(round)
        wire = self.segment.buffers.wire
        cut = slices_of_pages(self.size, members, wire)
        for one in (cut[position], slice(cut[-1].stop, wire.size)):
            self.courier.buffers.total(round)[one] = wanted(round, wire.size)[one]
        self.side.place_total(round, Where.SLICES)
        self.courier.courier.done = round


def wanted(round: int, size: int) -> np.ndarray:
    return np.arange(size, dtype=np.float32) + 1000 * round


def group(count: int, size: int) -> list[Member]:
    found = [Member(rank, size) for rank in range(count)]
    for one in found:
        assert one.totals.open([other.who for other in found]) is Outcome.DONE
    return found


@given(st.integers(0, 9 * EACH), st.integers(1, 9))
def test_slices_are_whole_pages_of_about_one_size(numbers: int, members: int) -> None:
    cut = slices_of_pages(numbers, members, WireFormat(Float32, numbers + FOOTER))
    assert [one.start for one in cut] == [0, *[one.stop for one in cut[:-1]]]
    assert all(one.start % EACH == one.stop % EACH == 0 for one in cut)
    assert 0 <= numbers - cut[-1].stop < EACH
    sizes = [one.stop - one.start for one in cut]
    assert max(sizes) - min(sizes) <= EACH


@pytest.mark.parametrize("members", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [5, EACH - 9, 2 * EACH, 7 * EACH + 13])
def test_every_worker_sees_the_whole_total(home: Path, members: int, size: int) -> None:
    del home
    found = group(members, size)
    for round in range(3):
        for position, one in enumerate(found):
            one.add(round, members, position)
        for one in found:
            assert [one.totals.has(round - before) for before in range(3)] == [True, round > 0, False]
            assert one.totals.total(round).tolist() == wanted(round, size + FOOTER).tolist()
            one.totals.check(round)


def test_the_dead_are_read_whatever_takes_their_place(home: Path) -> None:
    del home
    one, two, three = group(3, 7 * EACH)
    for position, member in enumerate((one, two, three)):
        member.add(0, 3, position)
    Member(1, 7 * EACH).add(5, 3, 1)  # the next worker of that rank
    three.segment.files.remove()
    assert one.totals.total(0).tolist() == wanted(0, 7 * EACH + FOOTER).tolist()
    one.totals.check(0)
    assert one.totals.open([one.who, two.who, three.who]) is Outcome.GONE
    assert two.totals.open([two.who]) is Outcome.GONE, "it is not the worker of its rank any more"


def test_a_round_that_others_repeat_is_noticed_and_so_is_the_next_but_one(home: Path) -> None:
    """This worker's courier has died, and the others have left it behind."""
    del home
    late, *others = group(3, 4 * EACH)
    for position, one in enumerate((late, *others)):
        one.add(0, 3, position)
        one.add(1, 3, position)
    late.totals.total(0)
    late.totals.total(1)
    late.totals.check(0)
    for one in others:
        one.courier.courier.shrink = 1
    others[0].side.begin_total(1)
    late.totals.check(0)
    with pytest.raises(Overtaken):
        late.totals.check(1)
    with pytest.raises(Overtaken):
        late.totals.export(1)
    others[1].side.begin_total(2)
    with pytest.raises(Overtaken):
        late.totals.check(0)


def test_a_total_is_exported_in_one_piece_also_when_another_group_has_met(home: Path) -> None:
    del home
    one, two, three = group(3, 5 * EACH + 3)
    for position, member in enumerate((one, two, three)):
        member.add(4, 3, position)
    assert one.totals.total(4) is not None
    one.courier.courier.shrink = two.courier.courier.shrink = 1
    for member in (one, two):
        assert member.totals.open([one.who, two.who]) is Outcome.DONE
    one.totals.export(4)
    assert one.courier.buffers.total(4).tolist() == wanted(4, 5 * EACH + 3 + FOOTER).tolist()


def test_a_courier_that_dies_while_it_writes_a_total_leaves_the_one_before_where_it_is(home: Path) -> None:
    """That one may still be wanted: it was sent in one piece, which it never was."""
    del home
    one, two = group(2, 5 * EACH)
    for position, member in enumerate((one, two)):
        member.add(4, 2, position)
    one.totals.total(4)
    one.side.begin_total(5)
    one.side.place_total(5, Where.BUFFER)
    assert one.totals.has(4)
    one.totals.export(4)
    assert one.courier.buffers.total(4).tolist() == wanted(4, 5 * EACH + FOOTER).tolist()


def test_what_couriers_of_the_job_before_have_placed_does_not_count(home: Path) -> None:
    """In a sharded job, they place nothing."""
    del home
    one, _ = group(2, 5 * EACH)
    one.courier.begin_job(1)
    one.add(4, 2, 0)
    one.courier.begin_job(1)
    assert one.totals.has(4)
    one.courier.begin_job(2)
    one.courier.courier.done = 4
    assert not one.totals.has(4)


def test_a_total_of_the_buffers_before_these_stays_as_it_is(home: Path) -> None:
    """It was no sum, but a member may lack it."""
    del home
    found = one, two = group(2, 5 * EACH)
    for position, member in enumerate(found):
        member.add(4, 2, position)
    before = one.courier.buffers.total(4).tolist()
    assert one.segment.buffers.total(4) is not None
    for member in found:
        make_buffers(member.segment.files, member.segment.worker, WireFormat(Float32, 9 * EACH + FOOTER), 0, since=5)
    for member in found:
        assert member.totals.open([one.who, two.who]) is Outcome.DONE
    one.totals.export(4)
    assert one.courier.buffers.total(4).tolist() == one.segment.buffers.total(4).tolist() == before


def test_a_total_that_comes_from_another_member_is_marked_unless_its_slice_may_be_read(home: Path) -> None:
    del home
    late, one, two = found = group(3, 5 * EACH)
    for round in range(2):
        for position, member in enumerate(found):
            member.add(round, 3, position)
        late.totals.total(round)
    one.courier.courier.shrink = two.courier.courier.shrink = 1
    one.side.take_total(1)  # as the others have it
    late.totals.check(1)
    two.side.take_total(2)
    late.totals.check(1)
    with pytest.raises(Overtaken):
        late.totals.check(0)


def mapped(member: Member) -> int:
    return Path("/proc/self/maps").read_text().count(f"{member.segment.files.path('buffers')}")


def test_what_the_dead_had_is_free_when_a_total_of_another_group_is_there(home: Path) -> None:
    del home
    one, two = found = group(2, 5 * EACH)
    for round in range(2):
        for position, member in enumerate(found):
            member.add(round, 2, position)
            SharedMemory(member.courier).done = round
        one.totals.total(round)
    del two.totals
    two.courier.buffers = None  # type: ignore[assignment]
    gc.collect()
    shared = mapped(two)
    one.totals.release()  # another sum of the step
    assert mapped(two) == shared > 0
    one.courier.courier.shrink = 1
    SharedMemory(one.courier).done = 2
    one.totals.release()
    gc.collect()
    assert mapped(two) == 0


def test_a_worker_with_too_many_open_files_does_without_slices(home: Path) -> None:
    del home
    one, two = group(2, 5 * EACH)
    before, found = resource.getrlimit(resource.RLIMIT_NOFILE), list[Outcome]()
    while Outcome.DONE not in found:
        free = [os.dup(0) for _ in range(len(found) + 1)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1], before[1]))
        for file in free:
            os.close(file)
        try:
            found.append(one.totals.open([one.who, two.who]))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert len(found) > 3 and {*found[:-1]} == {Outcome.CANNOT}


def test_buffers_of_another_size_are_not_mapped(home: Path) -> None:
    del home
    one, two = group(2, 4 * EACH)
    os.truncate(two.segment.files.path("buffers"), PAGE)
    assert one.totals.open([one.who, two.who]) is Outcome.GONE
