"""A worker's sums in device memory: its answers to its courier, where totals come from, what is given back."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshmend.base.processes import Identity
from meshmend.job.device import block_layout
from meshmend.job.device.base import Block
from meshmend.job.device.block_layout import is_direct
from meshmend.job.device.passing import SUFFIX
from meshmend.job.device.stand_in import StandIn
from meshmend.job.device.sums import DeviceSums
from meshmend.job.device.totals import Made
from meshmend.job.reduction.float32 import Float32
from meshmend.job.reduction.layout import Layout
from meshmend.job.shm import create_as_agent, open_as_agent
from meshmend.job.shm.records import Outcome, Task
from meshmend.job.shm.sliced import Overtaken
from tests.job.device.members import FOOTER, RUN, SIZE, WIRE, Member, part_of
from tests.job.shm.conftest import home as home

ALL = Outcome.DONE
REDUCTION = Float32(Layout([("weights", np.zeros(SIZE, np.float32))]), 3)


@pytest.fixture(params=["direct", "slices"])
def members(home: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Member]:
    """Three members, which add up all parts each, or a slice each."""
    del home
    monkeypatch.setattr(block_layout, "DIRECT", 4 if request.param == "direct" else 0)
    return [Member(rank) for rank in range(3)]


def summed(members: list[Member], round: int = 0) -> None:
    """A round up to the last barrier."""
    for task in (Task.MAP,) if is_direct(len(members)) else (Task.MAP, Task.ADD):
        assert [one.does(task, round, *members) for one in members] == [ALL] * len(members)


def test_every_member_gets_the_sums_of_all(members: list[Member]) -> None:
    wanted = part_of(0) + part_of(1) + part_of(2)
    for round in range(3):
        for one in members:
            one.bring(round)
        summed(members, round)
        for one in members:
            one.courier.done(round)
        assert all((one.sums.take(round) == wanted).all() for one in members)


def test_a_total_can_be_exported_whether_or_not_it_has_been_taken(members: list[Member]) -> None:
    summed(members)
    for one in members[:2]:
        one.courier.done(0)
    members[0].sums.take(0)
    for one in members[:2]:
        assert one.does(Task.EXPORT, 0) is ALL
        total = one.segment.buffers.total(0)
        assert (total[:SIZE] == part_of(0) + part_of(1) + part_of(2)).all() and not total[SIZE:].any()


def test_parts_go_down_and_up_without_their_footer(members: list[Member]) -> None:
    one, part = members[1], members[1].segment.buffers.part
    assert one.does(Task.LOWER, 0) is ALL
    assert (part[:SIZE] == part_of(1)).all() and not part[SIZE:].any()
    part[:SIZE], part[SIZE:] = 5, 6
    assert one.does(Task.RAISE, 0) is ALL
    assert (one.sums.own.part(0) == 5).all() and len(one.sums.own.part(0)) == len(part) - FOOTER
    one.sums.own.zero(0)
    assert not one.sums.own.part(0).any()


def test_a_question_of_a_round_that_is_over_or_of_no_group_is_not_obeyed(members: list[Member]) -> None:
    one = members[0]
    assert one.does(Task.ADD, 0) is Outcome.GONE
    summed(members)
    one.courier.done(0)
    before = np.array(one.sums.take(0))
    if not is_direct(len(members)):
        one.sums.own.part(0)[:] = 0
    assert one.does(Task.ADD, 0) is Outcome.GONE
    assert (one.sums.take(0) == before).all()
    one.sums.release()
    assert one.does(Task.ADD, 1) is Outcome.GONE


def test_a_dead_member_and_a_replaced_one_are_gone(members: list[Member]) -> None:
    open_as_agent(RUN, 2).agent.worker = replace(Identity.of(os.getpid()), number=1 << 21)
    assert members[0].does(Task.MAP, 0, *members) is Outcome.GONE
    create_as_agent(RUN, 2)
    assert members[1].does(Task.MAP, 0, *members) is Outcome.GONE


def test_memory_of_another_size_cannot_be_mapped_and_new_memory_is_mapped_again(members: list[Member]) -> None:
    summed(members)
    members[2].renew(SIZE + 500)
    assert members[0].does(Task.MAP, 0, *members) is Outcome.CANNOT and members[0].sums.why
    for one in members[:2]:
        one.renew(SIZE + 500)
    assert [one.does(Task.MAP, 0, *members) for one in members] == [ALL] * 3
    assert not members[0].sums.why


def test_a_total_of_buffers_that_were_replaced_is_not_made_from_the_new_ones(members: list[Member]) -> None:
    """They are replaced in a round without sums; a member that missed its end is then given that round's total."""
    summed(members)
    for one in members:
        one.courier.done(0)
        one.sums.take(0)
    one, *others = members
    one.renew(SIZE + 500)
    assert one.does(Task.EXPORT, 0) is ALL
    assert not one.segment.buffers.total(0).any()
    for other in others:
        other.renew(SIZE + 500)
    summed(members, 1)


def test_a_part_can_be_brought_again_in_the_round_after_one_that_was_not_summed(members: list[Member]) -> None:
    for one in members:
        one.sums.own.part(1)[:] = 77  # of a round before
        one.bring(0)
        one.courier.done(0)
        one.sums.own.asked(1, keep=True)
        one.sums.own.publish(1)
    summed(members, 1)
    for one in members:
        one.courier.done(1)
    assert all((one.sums.take(1) == part_of(0) + part_of(1) + part_of(2)).all() for one in members)


class Dirty(StandIn):
    """A device whose memory holds what others have left there."""

    def allocate(self, nbytes: int) -> Block:
        block = super().allocate(nbytes)
        self.upload(np.full(nbytes, 0xAA, np.uint8), (block, 0))
        return block


def test_new_memory_brings_nothing(home: Path) -> None:
    """A newcomer without lanes makes its block while it brings its first part."""
    del home
    one = Member(0)
    one.sums = DeviceSums(one.segment, Dirty(), staged=False)
    one.sums.make(WIRE, SIZE)
    assert not any(one.sums.own.part(round).any() for round in range(2))
    one.sums.close()


def test_a_worker_that_comes_too_late_for_a_total_says_so(members: list[Member]) -> None:
    summed(members)
    late, *others = members
    late.courier.done(0)
    for round in (1, 2):
        for one in others:
            one.courier.done(round - 1)
            one.bring(round)
        summed(others, round)
    with pytest.raises(Overtaken):
        late.sums.take(0)
    with pytest.raises(Overtaken):
        late.does(Task.EXPORT, 0)


def unpacked(one: Member, round: int) -> np.ndarray:
    """Begin to write a total to an array."""
    packing = one.sums.own.packing(REDUCTION)
    assert packing is not None
    out = np.empty(SIZE, np.float32)
    one.sums.unpack(round, packing, [out.ctypes.data], check=False)
    return out


def test_a_total_that_is_still_being_read_counts_only_when_nobody_has_overtaken(members: list[Member]) -> None:
    """The device reads while the worker goes on: that it was there is known when all has been read, and not before."""
    wanted = part_of(0) + part_of(1) + part_of(2)
    summed(members)
    for one in members:
        one.courier.done(0)
        assert (unpacked(one, 0) == wanted).all()
    late, *others = members
    for round in (1, 2):
        for one in others:
            one.sums.settle()
            one.bring(round)
        summed(others, round)
        for one in others:
            one.courier.done(round)
            assert (unpacked(one, round) == part_of(1) + part_of(2)).all()
    with pytest.raises(Overtaken):
        late.sums.settle()
    late.sums.settle()


def test_memory_of_members_is_kept_until_it_has_been_read(members: list[Member]) -> None:
    """What drops a mapping first waits for what reads it, and says if that came too late."""
    summed(members)
    late, *others = members
    late.courier.done(0)
    unpacked(late, 0)
    for round in (1, 2):
        for one in others:
            one.courier.done(round - 1)
            one.bring(round)
        summed(others, round)
    for drop in (late.sums.release, lambda: late.does(Task.MAP, 0, late), lambda: unpacked(late, 0)):
        late.sums._reading = (0, Made(tuple(one.courier.who for one in members)))
        with pytest.raises(Overtaken):
            drop()


def test_a_total_can_be_exported_until_the_next_round_is_done_whoever_makes_that(members: list[Member]) -> None:
    """The courier of one died before it knew of a round; it comes back when the others are in the next one."""
    wanted = part_of(0) + part_of(1) + part_of(2)
    summed(members)
    others = members[1:]
    for one in others:
        one.courier.done(0)
        assert (one.sums.take(0) == wanted).all()
        one.courier.segment.courier.shrink = 1
        one.sums.own.asked(1, keep=False)
        one.bring(1)
    summed(others, 1)
    for one in others:
        assert one.does(Task.EXPORT, 0) is ALL
        assert (one.segment.buffers.total(0)[:SIZE] == wanted).all()


def test_a_round_that_others_repeat_in_the_same_place_is_noticed(members: list[Member]) -> None:
    """They had not finished it, and add the lanes of the one that had, whose courier is dead, to their own parts."""
    wanted = part_of(0) + part_of(1) + part_of(2)
    summed(members)
    late, *others = members
    late.courier.done(0)
    for one in others:
        one.courier.segment.courier.shrink = 1
        one.sums.own.asked(0, keep=True)
    assert (late.sums.take(0) == wanted).all(), "none has changed its part yet"
    for one in others:
        one.sums.own.part(0)[:] += part_of(0) / 2
        one.sums.own.publish(0)
    if is_direct(len(members)):
        with pytest.raises(Overtaken):
            late.sums.take(0)
        with pytest.raises(Overtaken):
            late.does(Task.EXPORT, 0)
    else:
        assert (late.sums.take(0) == wanted).all(), "nobody has touched the totals"
    summed(others, 0)
    for one in others:
        one.courier.done(0)
        assert (one.sums.take(0) == wanted).all(), "those that repeat it are no late ones"
    with pytest.raises(Overtaken):
        late.sums.take(0)


def test_what_is_closed_is_given_back_and_can_be_had_again(members: list[Member]) -> None:
    summed(members)
    one, *others = members
    one.courier.done(0)
    one.sums.take(0)
    own = f"{one.rank}.{SUFFIX}"
    assert own in os.listdir(one.segment.files.folder)
    one.sums.close()
    assert own not in os.listdir(one.segment.files.folder)
    for other in others:
        other.courier.done(0)
        assert (other.sums.take(0) == part_of(0) + part_of(1) + part_of(2)).all(), "what they have mapped they keep"
    one.sums = DeviceSums(one.segment, StandIn(), staged=False)
    one.renew()
    summed(members, 1)


def test_a_member_may_bring_its_next_part_while_others_still_add_up_the_last(members: list[Member]) -> None:
    wanted = part_of(0) + part_of(1) + part_of(2)
    summed(members)
    quick, *others = members
    for one in members:
        one.courier.done(0)
    assert (quick.sums.take(0) == wanted).all()
    quick.sums.own.part(1)[:SIZE] = 7
    quick.sums.own.publish(1)
    assert all((one.sums.take(0) == wanted).all() for one in others)


@pytest.mark.parametrize("way", ["direct", "slices"])
def test_nothing_is_left_of_members_that_were_killed(tmp_path: Path, way: str) -> None:
    command = [sys.executable, "-m", "tests.job.device.many_kills", str(tmp_path), "50", way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    counts = done.stdout.splitlines()
    files = [int(line.split()[0]) for line in counts]
    assert len(counts) == 50 and max(files) - min(files) < 10, "some are open for a moment, none for each kill"
    assert counts[-1].split()[1] == "1", "its own block alone"
