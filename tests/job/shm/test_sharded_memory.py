"""The memory of a sharded job's protocol: what it says after its courier was killed between any two writes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from meshmend.job.protocol import NEVER
from meshmend.job.shm import create_as_agent, open_as_courier
from meshmend.job.shm.copies import drop_copies, hand_over
from meshmend.job.shm.files import RankFiles
from meshmend.job.shm.memory import SharedMemory
from meshmend.job.shm.records import CourierRecord, WritableCourierRecord
from meshmend.job.shm.sharded_memory import ShardedMemory, held_in


class Killed(Exception):
    pass


class Words(list[int]):
    """Words that so many writes reach."""

    left = 1 << 30

    def __setitem__(self, place: Any, value: Any) -> None:
        if not self.left:
            raise Killed
        self.left -= 1
        super().__setitem__(place, value)


class Segment:
    rank = 3

    def __init__(self, words: Words) -> None:
        self.courier = WritableCourierRecord(words)


def memory(words: Words) -> ShardedMemory:
    return ShardedMemory(cast(Any, Segment(words)))


HISTORY = [frozenset[int](), frozenset({0, 1023}), frozenset(range(1024)), frozenset({5}), frozenset({5, 6})]


@pytest.mark.parametrize("step", range(1, len(HISTORY)))
def test_a_courier_killed_while_it_writes_leaves_the_slices_of_before_or_of_after(step: int) -> None:
    found, writes = set(), 0
    while True:
        words = Words(CourierRecord.initial())
        for held in HISTORY[:step]:
            memory(words).held = held
        words.left = writes
        try:
            memory(words).held = HISTORY[step]
        except Killed:
            words.left = 1 << 30
            assert held_in(CourierRecord(words)) in HISTORY[step - 1 : step + 1]
            found.add(held_in(CourierRecord(words)))
            memory(words).held = frozenset({77})  # the next courier
            assert memory(words).held == {77}
            writes += 1
            continue
        break
    assert writes > 2 and HISTORY[step - 1] in found
    assert memory(words).held == HISTORY[step]


def test_the_next_courier_finds_what_this_one_has_written() -> None:
    words = Words(CourierRecord.initial())
    before = memory(words)
    assert (before.met, before.totals, before.came, before.joined) == ((-1, 0, 0), (-1, 0, 0), (0, 0), (0, 0))
    before.totals, before.met, before.came, before.joined = (4, 2, 1), (3, 2, 0), (2, 1), (2, 0)
    before.leaving = True
    after = memory(words)
    assert (after.met, after.totals, after.came, after.joined) == ((3, 2, 0), (4, 2, 1), (2, 1), (2, 0))
    assert after.leaving and not after.wrong


def test_a_copy_is_handed_over_without_being_copied(tmp_path: Path) -> None:
    giver, taker, other = (RankFiles("near", rank, tmp_path) for rank in range(3))
    taker.put_fill(3, np.frombuffer(b"left by an attempt that failed", np.uint8))
    for _ in range(2):  # again after a failure: it is the same file already
        giver.write_copy(3, [b"moments"])
        for one in (taker, other, taker):
            hand_over(3, giver, one)
    drop_copies(giver)
    for one in (taker, other):
        found = one.take_fill(3)
        assert found is not None and found.tobytes() == b"moments"
    assert not [*tmp_path.iterdir()]


def test_copies_are_dropped_and_one_that_is_being_written_is_not(tmp_path: Path) -> None:
    files = RankFiles("near", 1, tmp_path)
    files.write_copy(3, [b"old"])
    for name in ("1.copy-4.new", "1.fill-3", "11.copy-3"):
        (tmp_path / name).touch()
    drop_copies(files)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.copy-4.new", "1.fill-3", "11.copy-3"]


def test_a_copy_without_room_leaves_nothing_behind(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"half of it"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = RankFiles("full", 0, tmp_path)
    with pytest.raises(OSError, match="space"):
        files.write_copy(3, pieces())
    assert not [*tmp_path.iterdir()]


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("sharded", [False, True])
def test_a_newcomer_says_which_group_made_its_state_and_not_which_one_it_joins(sharded: bool) -> None:
    """The group that it joins may never make a total; its other members would count as left out of that."""
    create_as_agent("made", 0)
    segment = open_as_courier("made", 0)
    segment.begin_job(1)
    assert segment.state_made == (NEVER, 0, 0)
    segment.courier.world, segment.courier.shrink = 4, 2
    newcomer = ShardedMemory(segment) if sharded else SharedMemory(segment)
    if isinstance(newcomer, ShardedMemory):
        newcomer.done, newcomer.met = 6, (6, 3, 1)
    else:
        newcomer.complete(6, (3, 1))
    assert segment.state_made == (6, 3, 1)
