"""What cannot be written is said once, with the reason, and once more when it can be."""

from __future__ import annotations

import os
from errno import EDQUOT, EFBIG, EIO, ENOSPC
from pathlib import Path

import pytest

from meshmend.base.clocks import ROOM_POLL, ROOM_SAID
from meshmend.run import disk
from meshmend.run.disk import DiskWatch
from meshmend.run.news import DiskFreed, DiskFull, Unwritten, Written

QUOTA, LARGE = os.strerror(EDQUOT), os.strerror(EFBIG)


def test_workers_that_cannot_write_are_named_once_with_the_reason(tmp_path: Path) -> None:
    watch = DiskWatch(tmp_path)
    assert watch.look(None, {0: EDQUOT, 1: EDQUOT, 2: 0}, 10.0) == []  # it may pass at once
    [said] = watch.look(None, {0: EDQUOT, 1: EDQUOT, 2: 0}, 10.0 + ROOM_SAID)
    assert said == Unwritten((0, 1), tmp_path, QUOTA)
    assert watch.look(None, {0: EDQUOT, 1: EDQUOT, 2: 0}, 99.0) == []
    assert watch.look(None, {1: EDQUOT, 2: 0}, 100.0) == []  # one that is not seen has not changed
    assert watch.look(None, {0: 0, 1: EDQUOT, 2: 0}, 101.0) == [Written((0,), tmp_path)]
    assert watch.look(None, {0: 0, 1: 0, 2: 0}, 102.0) == [Written((1,), tmp_path)]


def test_a_moment_is_not_worth_a_sentence(tmp_path: Path) -> None:
    watch = DiskWatch(tmp_path)
    said = [watch.look(None, {0: EIO if turn % 2 else 0}, turn * ROOM_SAID) for turn in range(9)]
    assert not any(said)


def test_a_number_that_no_error_has_is_no_reason_to_fail(tmp_path: Path) -> None:
    watch = DiskWatch(tmp_path)
    watch.look(None, {0: 1 << 62}, 1.0)
    [said] = watch.look(None, {0: 1 << 62}, 99.0)
    assert isinstance(said, Unwritten) and str(1 << 62) in said.why


def test_a_full_disk_is_said_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = DiskWatch(tmp_path)
    monkeypatch.setattr(disk, "is_full", lambda _: True)
    [said] = watch.look(None, {0: ENOSPC}, 1.0)
    assert said == DiskFull(tmp_path) and watch.look(None, {0: ENOSPC}, 99.0) == []
    monkeypatch.setattr(disk, "is_full", lambda _: False)
    [said] = watch.look(None, {0: ENOSPC}, 100.0)
    assert said == DiskFreed() and watch.look(None, {0: 0}, 101.0) == []


def test_the_launchers_own_trouble_has_its_reason(tmp_path: Path) -> None:
    watch = DiskWatch(tmp_path)
    [said] = watch.look(OSError(EIO, os.strerror(EIO)), {}, 1.0)
    assert said == Unwritten((), tmp_path, os.strerror(EIO))
    assert watch.look(OSError(EIO, os.strerror(EIO)), {}, 1.0 + 2 * ROOM_POLL) == []
    [said] = watch.look(None, {}, 2.0 + 2 * ROOM_POLL)
    assert said == Written((), tmp_path)
