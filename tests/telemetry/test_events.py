"""Events are written whole or told to be missing; a torn line costs itself and no other."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from meshmend import cli
from meshmend.errors import FormatError, JobError
from meshmend.telemetry import events
from meshmend.telemetry.events import Began, Died, Log, Struck, read


def struck(rank: int) -> Struck:
    return Struck(rank=rank, what="kill", time=float(rank))


@contextmanager
def small_files() -> Iterator[None]:
    """Meanwhile a file may have 300 bytes, also the one that pytest itself may write to."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_disk_that_is_full_is_one_sentence(tmp_path: Path) -> None:
    log = Log(tmp_path, "launcher")
    with pytest.raises(JobError) as error, small_files():
        for rank in range(9):
            log.write(struck(rank))
    assert str(error.value).startswith(f"{tmp_path / 'events' / 'launcher.jsonl'} cannot be written (File too large):")
    assert "\n" not in str(error.value) and "--resume" in str(error.value)
    assert [event.time for event in read(tmp_path)] == [0.0, 1.0, 2.0, 3.0]


def test_short_writes_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, write = Log(tmp_path, "launcher"), os.write
    monkeypatch.setattr(events.os, "write", lambda file, data: write(file, bytes(data)[:7]))
    log.write(struck(1))
    log.write(struck(2))
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
    assert told == [f"{path}, line 2 is torn (its writer was killed, or the disk was full) and is left out"]


def test_a_failed_write_does_not_spoil_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, write = Log(tmp_path, "launcher"), os.write

    def fill(file: int, data: bytes) -> int:
        if len(data) < 40:
            raise OSError(28, "No space left on device")
        return write(file, bytes(data)[:40])

    monkeypatch.setattr(events.os, "write", fill)
    with pytest.raises(JobError, match="No space left on device"):
        log.write(struck(1))
    monkeypatch.undo()
    log.write(struck(2))
    assert read(tmp_path) == [struck(2)]


def test_what_is_no_event_is_not_taken_for_a_torn_one(tmp_path: Path) -> None:
    Log(tmp_path, "launcher").write(struck(1))
    path = tmp_path / "events" / "worker-0.jsonl"
    for line in ("hello", json.dumps({"kind": "Nothing"}), json.dumps([1])):
        path.write_text(f"{line}\n{struck(2).line()}\n")
        with pytest.raises(FormatError, match="line 1 is no event"):
            read(tmp_path)
        assert read(tmp_path, "launcher") == [struck(1)]


def test_an_audit_tells_of_torn_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MESHMEND_RUNS", str(tmp_path))
    log = Log(tmp_path / "r", "launcher")
    log.write(Began(attempt=0, workers=1, spares=0, on_failure="replace"))
    opened = events.Opened(rank=0, attempt=0, step=0, size=8, batch=8, lanes=1, seed=0, reduction="exact")
    Log(tmp_path / "r", "worker-0").write(opened)
    with (tmp_path / "r" / "events" / "worker-0.jsonl").open("a") as file:
        file.write('{"kind":"Comm\n')
        file.write(events.Committed(rank=0, attempt=0, step=0, by=[[0, 1]], digest="x").line() + "\n")
    assert cli.main(["audit", "r"]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("meshmend: ") and "line 2 is torn" in said.err and said.err.count("\n") == 1


def test_one_writer_can_be_read_alone(tmp_path: Path) -> None:
    died = Died(rank=1, what="worker", how="SIGKILL")
    Log(tmp_path, "launcher").write(died)
    Log(tmp_path, "worker-0").write(struck(1))
    assert read(tmp_path, "launcher") == [died] and len(read(tmp_path)) == 2


def test_how_many_steps_are_done_is_told_by_the_ends_of_ledgers(tmp_path: Path) -> None:
    assert events.steps_done(tmp_path) == 0
    for rank, steps in ((0, 2000), (1, 1500)):
        log = Log(tmp_path, f"worker-{rank}")
        for step in range(steps):
            log.write(events.Committed(rank=rank, attempt=0, step=step, by=[[0, 16]], digest="x" * 16))
    assert (tmp_path / "events" / "worker-0.jsonl").stat().st_size > 2 * events.END
    assert events.steps_done(tmp_path) == 2000
    log.write(events.Skipped(rank=1, attempt=0, step=2000, by=[], why="NaN"))
    log.write(struck(1))
    with (tmp_path / "events" / "worker-1.jsonl").open("a") as file:
        file.write('{"kind":"Committed","step":9000,')
    assert events.steps_done(tmp_path) == 2001
