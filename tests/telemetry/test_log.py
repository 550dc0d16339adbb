"""Events are written whole, later where the disk is full; a torn line costs itself and no other."""

from __future__ import annotations

import errno
import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from meshmend import cli
from meshmend.base.clocks import HALT, UNWRITABLE
from meshmend.errors import JobError
from meshmend.telemetry import (
    NO_ROOM,
    PASSING,
    Began,
    Committed,
    Component,
    Epoch,
    Log,
    Opened,
    Patience,
    Struck,
    always,
    folder,
    read,
)


def struck(rank: int) -> Struck:
    return Struck(epoch=Epoch(0, 1), what=Component.WORKER, fault="kill", rank=rank, time=float(rank))


@contextmanager
def small_files() -> Iterator[None]:
    """Meanwhile a file may have 500 bytes; that includes files that pytest itself writes to."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_what_a_full_disk_has_no_room_for_is_written_later_and_whole(tmp_path: Path) -> None:
    log = Log(tmp_path, "launcher")
    with small_files():
        for rank in range(9):
            log.write(struck(rank))
        assert not log.flush()
    fit = 500 // (len(struck(0).line()) + 1)
    assert [event.time for event in read(tmp_path)] == [float(rank) for rank in range(fit)]
    assert log.flush()
    told = list[str]()
    assert read(tmp_path, torn=told.append) == [struck(rank) for rank in range(9)] and told == []


def test_a_writer_that_must_waits_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, write, waits = Log(tmp_path, "worker-0"), os.write, list[str]()

    @contextmanager
    def wait() -> Iterator[Patience]:
        waits.append("begin")
        monkeypatch.setattr(folder.time, "sleep", lambda _: monkeypatch.setattr(folder.os, "write", write))
        yield always
        waits.append("end")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    log.wait = wait
    log.write(struck(0))
    assert waits == []
    monkeypatch.setattr(folder.os, "write", full)
    log.write(struck(1))
    assert waits == ["begin", "end"] and read(tmp_path) == [struck(0), struck(1)]


def failing(monkeypatch: pytest.MonkeyPatch, number: int) -> list[float]:
    """No file can be written from now on; the clock goes as fast as a writer sleeps. Returns each sleep."""
    slept, before = list[float](), time.monotonic()

    def fails(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(folder.os, "write", fails)
    monkeypatch.setattr(folder.time, "sleep", slept.append)
    monkeypatch.setattr(folder.time, "monotonic", lambda: before + sum(slept))
    return slept


def test_an_error_that_stays_ends_the_wait_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path / "mine", "worker-0")
    log.wait = lambda: nullcontext(always)
    with monkeypatch.context() as patch:
        slept = failing(patch, errno.EFBIG)
        with pytest.raises(JobError) as error:
            log.write(struck(0))
        assert UNWRITABLE < sum(slept) < 2 * UNWRITABLE
        log.write(struck(1))  # what follows does not wait again
    said = str(error.value)
    assert os.strerror(errno.EFBIG) in said and "worker-0.jsonl" in said and said.endswith("--resume mine")
    assert log.flush() and read(tmp_path / "mine") == [struck(0), struck(1)]


@pytest.mark.parametrize("number", sorted(PASSING))
def test_an_error_that_may_pass_is_waited_for_until_the_run_is_halted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    log, told = Log(tmp_path, "worker-0"), list[int | None]()

    def patience(error: OSError, seconds: float) -> bool:
        assert seconds < HALT
        told.append(error.errno)
        return len(told) < 1000

    log.wait = lambda: nullcontext(patience)
    with monkeypatch.context() as patch:
        failing(patch, number)
        log.write(struck(0))
    assert told == [number] * 1000 and log.error is not None
    assert log.flush() and log.error is None and read(tmp_path) == [struck(0)]


@pytest.mark.parametrize("number", sorted(NO_ROOM))
def test_a_file_that_cannot_be_made_for_want_of_room_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(folder.os, "open", full)
    log = Log(tmp_path, "launcher")
    log.write(struck(0))
    monkeypatch.undo()
    log.write(struck(1))
    assert read(tmp_path) == [struck(0), struck(1)]


def test_a_folder_that_can_never_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("")
    with pytest.raises(JobError) as error:
        Log(tmp_path, "launcher")
    assert str(tmp_path / "events") in str(error.value) and "\n" not in str(error.value)


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, write = Log(tmp_path, "launcher"), os.write
    monkeypatch.setattr(folder.os, "write", lambda file, data: write(file, bytes(data)[:7]))
    writer.write(struck(1))
    writer.write(struck(2))
    monkeypatch.undo()
    assert read(tmp_path) == [struck(1), struck(2)]


@pytest.mark.parametrize("place", range(1, len(struck(1).line())))
def test_a_torn_line_does_not_spoil_the_next(tmp_path: Path, place: int) -> None:
    Log(tmp_path, "worker-0").write(struck(0))
    path, told = tmp_path / "events" / "worker-0.jsonl", list[str]()
    with path.open("a") as file:
        file.write(struck(1).line()[:place])
    assert read(tmp_path, torn=told.append) == [struck(0)] and told == []  # it may still be being written
    Log(tmp_path, "worker-0").write(struck(2))
    assert read(tmp_path, torn=told.append) == [struck(0), struck(2)]
    assert len(told) == 1 and told[0].startswith(f"{path}, line 2 ")


def test_an_audit_tells_of_torn_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MESHMEND_RUNS", str(tmp_path))
    epoch = Epoch(0, 1)
    Log(tmp_path / "r", "launcher").write(Began(epoch=Epoch(0), workers=1, spares=0, on_failure="replace"))
    opened = Opened(epoch=epoch, rank=0, step=0, size=8, batch=8, lanes=1, seed=0, reduction="exact")
    Log(tmp_path / "r", "worker-0").write(opened)
    with (tmp_path / "r" / "events" / "worker-0.jsonl").open("a") as file:
        file.write('{"kind":"Comm\n')
        file.write(Committed(epoch=epoch, rank=0, step=0, by=[[0, 1]], digest="x").line() + "\n")
    assert cli.main(["audit", "r"]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("meshmend: ") and "line 2" in said.err and said.err.count("\n") == 1
