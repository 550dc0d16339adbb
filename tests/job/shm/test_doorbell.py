"""A doorbell wakes who waits for it, whatever the number of its file."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshmend.job.shm.doorbell import Doorbell

MANY = 1100


@pytest.fixture
def many_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < MANY + 100:
        pytest.skip(f"this user may open {before[1]} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], MANY + 100), before[1]))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(MANY)]
    yield
    for file in opened:
        os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_files")
def test_a_worker_may_have_many_files_open(tmp_path: Path) -> None:
    """`select` knows none above 1,023: it ended the thread that listens."""
    bell = Doorbell(tmp_path / "bell")
    bell.make()
    bell.wait(0.0)
    for _ in range(2):
        bell.ring()
        bell.wait(60.0)
    assert bell._file > 1023


def test_who_drops_a_doorbell_has_nothing_of_it_left(tmp_path: Path) -> None:
    """A courier opens those of its neighbours again in every group."""
    Doorbell(tmp_path / "bell").make()
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        Doorbell(tmp_path / "bell").ring()
    assert os.listdir("/proc/self/fd") == before


def test_who_has_too_many_files_open_rings_nobody_and_goes_on(tmp_path: Path) -> None:
    """Bells only save time."""
    bell = Doorbell(tmp_path / "bell")
    bell.make()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        bell.ring()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert bell._file == -1
