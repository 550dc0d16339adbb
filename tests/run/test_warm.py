"""An agent keeps processes that wait to replace a worker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshmend.base.clocks import WARM_PAUSE
from meshmend.run.agent import warm
from meshmend.run.agent.warm import WarmProcesses

SCRIPT = ["train.py", "8"]
OBEDIENT = "import sys; print(sys.stdin.readline(), end='')"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes that were started: they print what they are told, and end."""
    found: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        assert command[3:] == ["meshmend.job.warm", *SCRIPT]
        with (tmp_path / str(len(found))).open("wb") as printed:
            found.append(start([sys.executable, "-c", OBEDIENT], **{**options, "stdout": printed}))
        return found[-1]

    monkeypatch.setattr(warm.subprocess, "Popen", popen)
    yield found
    for one in found:
        one.kill()
        one.wait()


def kept(wanted: int) -> WarmProcesses:
    one = WarmProcesses()
    one.keep(wanted, SCRIPT)
    return one


def test_none_is_started_unless_asked_for(started: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    one = WarmProcesses()
    one.refill(100.0, calm=True)
    assert not started and one.take(SCRIPT, {}, tmp_path) is None


def test_one_after_another_while_all_is_calm(started: list[subprocess.Popen[bytes]]) -> None:
    one = kept(2)
    counts = []
    for now, calm in ((0.0, False), (1.0, True), (WARM_PAUSE + 0.1, True), (WARM_PAUSE + 0.2, True)):
        one.refill(now, calm=calm)
        counts.append(len(started))
    assert counts == [0, 0, 1, 1]
    one.refill(3 * WARM_PAUSE, calm=False)  # a worker has died: its replacement needs the processor
    one.refill(3 * WARM_PAUSE + 1, calm=True)
    assert len(started) == 1
    for turn in range(5, 9):
        one.refill(turn * WARM_PAUSE, calm=True)
    assert len(started) == 2
    one.close()
    assert all(process.poll() is not None for process in started)


def test_one_that_waits_is_told_its_place(started: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    one = kept(1)
    one.refill(WARM_PAUSE, calm=True)
    assert one.take(["other.py"], {}, tmp_path) is None
    taken = one.take(SCRIPT, {"MESHMEND_RANK": "3"}, tmp_path / "log")
    assert taken is started[0] and one.take(SCRIPT, {}, tmp_path) is None
    taken.wait(60)
    assert '"MESHMEND_RANK": "3"' in (tmp_path / "0").read_text()


def test_a_dead_one_is_not_taken_but_replaced(started: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    one = kept(1)
    one.refill(WARM_PAUSE, calm=True)
    started[0].kill()
    started[0].wait()
    assert one.take(SCRIPT, {}, tmp_path) is None
    one.refill(3 * WARM_PAUSE, calm=True)
    assert len(started) == 2
    one.close()
