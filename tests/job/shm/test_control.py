"""A control file says what it is; anything else is refused, and never mapped."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from meshmend.errors import JobError, SegmentGone
from meshmend.job.shm import (
    clean_stale,
    control,
    create_as_agent,
    leave,
    open_as_agent,
    open_as_courier,
    open_to_read,
    ranks_of,
)
from meshmend.job.shm.control import FORMAT, SIZE, WORD
from meshmend.job.shm.inspect import member


def word(place: int, value: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(place * WORD)
            file.write(struct.pack("=q", value))

    return write


def size(length: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, length)


def foreign(path: Path) -> None:
    path.write_bytes(b"another program's " * SIZE)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


BAD = {
    "empty": (size(0), "0 bytes"),
    "only a header": (size(64), f"64 bytes instead of {SIZE * WORD}"),
    "truncated": (size(SIZE * WORD - 1), f"{SIZE * WORD - 1} bytes instead of {SIZE * WORD}"),
    "too long": (size(SIZE * WORD + 1), f"{SIZE * WORD + 1} bytes instead of {SIZE * WORD}"),
    "foreign": (foreign, "not written by meshmend"),
    "a pipe": (pipe, "remove it"),
    "another format": (word(1, FORMAT + 1), f"format {FORMAT + 1}, .* needs format {FORMAT}"),
    "a size that is wrong": (word(2, 8), "is damaged"),
    "another run": (word(3, 1), "another run"),
    "another rank": (word(4, 7), "another run or rank"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("open_", [open_to_read, open_as_agent, open_as_courier])
def test_anything_else_is_refused_and_not_mapped(
    home: Path, name: str, open_: Callable[[str, int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = create_as_agent("mine", 0).files.path("control")
    assert path.parent == home / "mine"
    spoil, says = BAD[name]
    spoil(path)
    monkeypatch.setattr(control.mmap, "mmap", lambda *_, **__: pytest.fail("it was mapped"))
    with pytest.raises(JobError, match=says) as refused:
        open_("mine", 0)
    assert str(path) in str(refused.value) and "remove" in str(refused.value)
    assert not isinstance(refused.value, SegmentGone)
    monkeypatch.undo()


def test_a_link_is_not_followed(home: Path) -> None:
    path = create_as_agent("mine", 0).files.path("control")
    path.rename(home / "elsewhere")
    path.symlink_to(home / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        open_to_read("mine", 0)


def test_what_is_gone_is_gone(home: Path) -> None:
    for run, about in [("mine", "'mine', rank 3"), ("other", "'other'")]:
        create_as_agent("mine", 0)
        with pytest.raises(SegmentGone, match=about):
            open_to_read(run, 3)
        assert member(run, 3) is None
    assert not (home / "other").exists()


def test_memory_of_another_version_is_left_alone_while_its_run_lives(home: Path) -> None:
    create_as_agent("theirs", 0)
    word(1, FORMAT + 1)(home / "theirs" / "0.control")
    assert clean_stale() == [] and ranks_of("theirs") == [0]
    assert leave("theirs")


def test_the_memory_of_the_next_worker_is_told_apart(home: Path) -> None:
    del home
    first = create_as_agent("mine", 0)
    assert open_to_read("mine", 0).birth == first.birth
    second = create_as_agent("mine", 0)
    assert open_to_read("mine", 0).birth == second.birth != first.birth
    first.agent.attempt = 5  # an agent that has it open writes to memory that nobody sees any more
    assert open_to_read("mine", 0).agent.attempt == 0


def test_a_control_file_is_whole_when_it_gets_its_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> mmap.mmap:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(control.mmap, "mmap", full)
    with pytest.raises(OSError, match="allocate"):
        create_as_agent("mine", 0)
    assert not (home / "mine" / "0.control").exists()
