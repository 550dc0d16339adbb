"""Nothing that a reader does ends the launcher or holds it up, and the file has every line."""

from __future__ import annotations

import gzip
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from meshmend.base import log_files
from meshmend.run import outlet
from meshmend.run.outlet import ROOM, Outlet
from tests.processes import wait_for

LINES = [f"line {number} {'x' * 90}\n" for number in range(3000)]


class Pipe:
    """A pipe whose reader is the test."""

    def __init__(self) -> None:
        self.reader, writer = os.pipe()
        self.stream: TextIO = os.fdopen(writer, "w")

    def read(self) -> str:
        """What comes until the end of the pipe."""
        with os.fdopen(self.reader) as file:
            return file.read()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.stream.close()


def test_all_lines_come_in_order_and_are_kept(tmp_path: Path, pipe: Pipe) -> None:
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read()))
    reader.start()
    out = Outlet(tmp_path / "output" / "launcher.log")
    for line in LINES:
        out.write(pipe.stream, line)
    out.drain()
    pipe.stream.close()
    reader.join(60)
    assert found == ["".join(LINES)] == [(tmp_path / "output" / "launcher.log").read_text()]


def test_a_reader_that_goes_away_ends_nothing(tmp_path: Path, pipe: Pipe) -> None:
    os.close(pipe.reader)
    out = Outlet(tmp_path / "log")
    for line in LINES:
        out.write(pipe.stream, line)
    out.drain()
    assert (tmp_path / "log").read_text() == "".join(LINES)
    print("what others print there fails neither", file=pipe.stream, flush=True)


def test_a_reader_that_does_not_read_holds_nobody_up(
    tmp_path: Path, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlet, "READER", 0.2)
    out = Outlet(tmp_path / "log")
    for _ in range(1 + 2 * ROOM // len(LINES)):
        for line in LINES:
            out.write(pipe.stream, line)
    assert (tmp_path / "log").read_text().count("\n") > 2 * ROOM
    out.drain()  # it gives up
    print("what others print there does not wait", file=pipe.stream, flush=True)
    out.write(pipe.stream, "the end\n")
    assert (tmp_path / "log").read_text().endswith("the end\n")
    os.close(pipe.reader)  # which ends the thread's wait


def test_a_reader_that_reads_again_learns_how_much_it_missed(
    tmp_path: Path, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlet, "READER", 60.0)  # on a busy machine the reader is slow
    out = Outlet(tmp_path / "log")
    for _ in range(1 + 2 * ROOM // len(LINES)):
        for line in LINES:
            out.write(pipe.stream, line)
    written = (tmp_path / "log").read_text().count("\n")
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read()))
    reader.start()
    out.drain()
    out.write(pipe.stream, "again\n")
    out.drain()
    pipe.stream.close()
    reader.join(60)
    *lines, note, last = found[0].splitlines()
    assert last == "again" and str(written - len(lines)) in note and str(tmp_path / "log") in note


def test_a_pipe_that_somebody_has_made_nonblocking_is_waited_for(tmp_path: Path, pipe: Pipe) -> None:
    os.set_blocking(pipe.stream.fileno(), False)
    test_all_lines_come_in_order_and_are_kept(tmp_path, pipe)


def test_a_file_that_cannot_be_written_is_done_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "output").write_text("")  # where the folder should be
    out = Outlet(tmp_path / "output" / "launcher.log")
    out.write(sys.stdout, "a line\n")
    assert capsys.readouterr().out == "a line\n" and out.flush() is not None
    (tmp_path / "output").unlink()
    out.write(sys.stdout, "another\n")
    assert out.flush() is None and (tmp_path / "output" / "launcher.log").read_text() == "a line\nanother\n"


def test_a_file_of_weeks_is_packed_and_holds_every_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by the next launcher, if this one is killed before it came to that."""
    piece = 1 << 16
    monkeypatch.setattr(outlet, "FULL", piece)
    monkeypatch.setattr(log_files, "FULL", piece)
    path = tmp_path / "launcher.log"
    path.write_text("".join(LINES[:1000]))
    out = Outlet(path)
    for line in LINES[1000:]:
        out.write(None, line)
    text = "".join(LINES).encode()
    wait_for(lambda: (out.write(None, ""), out._packer is not None and not out._packer.is_alive())[1])
    packed = sorted(tmp_path.glob("launcher.*.log.gz"))
    assert len(packed) > 1 and path.stat().st_blocks * 512 <= len(text) - (len(packed) - 1) * piece
    whole = b"".join(gzip.decompress(one.read_bytes()) for one in packed)
    assert whole + path.read_bytes()[len(whole) :] == text
