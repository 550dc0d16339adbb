"""Output of weeks: what is old is packed, nothing is lost, and the disk gets its room back."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from meshmend.base import log_files
from meshmend.base.log_files import pack_away

PIECE = 1 << 16


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "FULL", PIECE)


def everything(path: Path, packed: int) -> bytes:
    pieces = sorted(path.parent.glob("worker-0.*.log.gz"))
    assert len(pieces) == packed
    return b"".join(gzip.decompress(piece.read_bytes()) for piece in pieces) + path.read_bytes()[packed * PIECE :]


def test_what_has_been_shown_is_packed_while_the_worker_goes_on(tmp_path: Path) -> None:
    path, text = tmp_path / "worker-0.log", b""
    with path.open("ab", buffering=0) as worker:  # as its process has it
        for turn in range(8):
            more = f"step {turn} ".encode() * 5000
            worker.write(more)
            text += more
            pack_away(path, len(text) - 100)
            assert everything(path, (len(text) - 100) // PIECE) == text
    assert path.stat().st_blocks * 512 < 2 * PIECE < path.stat().st_size == len(text)


@pytest.mark.parametrize("lost", ["replace", "hole"])
def test_a_kill_in_the_middle_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    path, text = tmp_path / "worker-0.log", os.urandom(2 * PIECE + 5)
    path.write_bytes(text)
    with monkeypatch.context() as killing, pytest.raises(Killed):
        killing.setattr(*((os, "replace") if lost == "replace" else (log_files, "_give_back")), kill)
        pack_away(path, len(text))
    pack_away(path, len(text))
    assert everything(path, 2) == text
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "worker-0.0000.log.gz",
        "worker-0.0001.log.gz",
        "worker-0.log",
    ]


def test_where_there_are_no_holes_the_file_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "_give_back", lambda *_: False)
    path, text = tmp_path / "worker-0.log", os.urandom(2 * PIECE)
    path.write_bytes(text)
    pack_away(path, len(text))
    assert [one.name for one in tmp_path.iterdir()] == ["worker-0.log"] and path.read_bytes() == text
