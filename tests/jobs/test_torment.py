"""The tool that strikes a run with everything: it survives what it does, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.jobs import DEADLINE, wait_for

pytestmark = pytest.mark.jobs
CHAOS = Path(__file__).parent.parent.parent / "benchmarks" / "chaos"


@pytest.fixture(autouse=True)
def _room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True).returncode:
        pytest.skip("mount and process namespaces are not to be had here")
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def chaos(*words: str) -> list[str]:
    return [sys.executable, str(CHAOS), "--workers", "2", *words]


def test_a_full_disk_full_memory_a_closed_pipe_and_a_reboot_are_survived(tmp_path: Path) -> None:
    words = chaos("--failures", "5", "--kinds", "disk-full,memory-full,pipe,host-reboot,term-all", "--seed", "5")
    ran = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_cannot_begin_is_told_in_its_launchers_words(tmp_path: Path) -> None:
    words = chaos("--failures", "1", "--sharded", "5")
    ran = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE)
    assert ran.returncode == 1 and "Traceback" not in ran.stdout + ran.stderr, ran.stdout + ran.stderr
    assert "NOT WELL: the run never did a step" in ran.stdout and "buddies=5 needs at least 6 workers" in ran.stdout
    assert ran.stdout.count("== meshmend run") == 1, "it was not asked again"
    assert list(tmp_path.iterdir()) == []


def test_more_workers_than_eight_have_a_lane_each() -> None:
    words = chaos("--workers", "9", "--failures", "2", "--kinds", "kill")
    ran = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_nothing_is_left_when_it_is_killed(tmp_path: Path) -> None:
    """All of the room ends with whoever started it: mounts are seen by nobody else, and processes are killed."""
    with (tmp_path / "log").open("w+") as log:
        tool = subprocess.Popen(chaos("--failures", "1000", "--kinds", "slow"), stdout=log, stderr=log)
        try:
            wait_for(lambda: "recovered" in (tmp_path / "log").read_text() or tool.poll() is not None)
            inside = _inside(str(tmp_path))
            assert len(inside) > 5, (tmp_path / "log").read_text()
        finally:
            os.kill(tool.pid, signal.SIGKILL)
            tool.wait()
    wait_for(lambda: _inside(str(tmp_path)) == [])


def _inside(folder: str) -> list[int]:
    """Processes of a room in that folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"MESHMEND_CHAOS_HOME={folder}/".encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
