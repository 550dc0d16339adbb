"""Events are written whole, or the writer learns that they are not; a torn line costs itself and no other."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from meshmend import cli
from meshmend.errors import JobError
from meshmend.telemetry import Began, Committed, Epoch, Log, Opened, Part, Struck, folder, read


def struck(rank: int) -> Struck:
    return Struck(epoch=Epoch(0, 1), what=Part.WORKER, fault="kill", rank=rank, time=float(rank))


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


def test_a_disk_that_is_full_is_one_sentence(tmp_path: Path) -> None:
    log = Log(tmp_path, "launcher")
    with pytest.raises(JobError) as error, small_files():
        for rank in range(9):
            log.write(struck(rank))
    assert f"{tmp_path / 'events' / 'launcher.jsonl'} (File too large)" in str(error.value)
    assert "\n" not in str(error.value) and "--resume" in str(error.value)
    fit = 500 // (len(struck(0).line()) + 1)
    assert [event.time for event in read(tmp_path)] == [float(rank) for rank in range(fit)]


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


def test_a_failed_write_does_not_spoil_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, write = Log(tmp_path, "launcher"), os.write

    def fill(file: int, data: bytes) -> int:
        if len(data) < 80:
            raise OSError(28, "No space left on device")
        return write(file, bytes(data)[:80])

    monkeypatch.setattr(folder.os, "write", fill)
    with pytest.raises(JobError, match="No space left on device"):
        writer.write(struck(1))
    monkeypatch.undo()
    writer.write(struck(2))
    assert read(tmp_path) == [struck(2)]


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
