"""Runs of `meshmend run` in tests: started in a folder of their own, with a deadline, and judged by what they leave."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

import meshmend as mm
from meshmend import report
from meshmend.errors import SegmentGone
from meshmend.job.shm import ranks_of
from meshmend.job.shm.home import folder_of
from meshmend.telemetry import read
from tests.processes import wait_for as wait_for

SCRIPT = Path(__file__).with_name("regression.py")
DEADLINE = 240.0


@dataclass
class Job:
    """One run, of a name that no other test has."""

    folder: Path
    name: str
    process: subprocess.Popen[str] | None = None
    output: str = ""
    status: int | None = None
    faults: list[mm.testing.Fault] = field(default_factory=list)
    on: Callable[..., list[str]] = lambda *words: list(words)
    """Makes of a command the one that runs it on another host."""
    _late: threading.Timer | None = None

    @property
    def path(self) -> Path:
        return self.folder / "runs" / self.name

    def start(self, *words: str, script: Sequence[object] = (SCRIPT,), name: bool = True) -> Job:
        named = ["--name", self.name] if name else []
        command = self.on(sys.executable, "-m", "meshmend", "run", *named, *words, *map(str, script))
        with ExitStack() as stack:
            for fault in self.faults:
                stack.enter_context(mm.testing.fail_at(**asdict(fault)))
            self.process = subprocess.Popen(
                command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
        self._late = threading.Timer(DEADLINE, self.process.kill)  # `until` would wait for ever
        self._late.daemon = True
        self._late.start()
        return self

    def finish(self) -> Job:
        assert self.process is not None
        try:
            self.output += self.process.communicate(timeout=DEADLINE)[0]
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.output += self.process.communicate()[0]
            pytest.fail(f"the run hung:\n{self.output}")
        assert self._late is not None
        self._late.cancel()
        self.status = self.process.returncode
        return self

    def run(self, *words: str, script: Sequence[object] = (SCRIPT,)) -> Job:
        return self.start(*words, script=script).finish()

    def until(self, text: str) -> Job:
        """Read what it prints until this is there."""
        assert self.process is not None and self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if text in line:
                return self
        pytest.fail(f"{text!r} never came:\n{self.output}")

    def open_gate(self) -> None:
        """Have workers that wait at their `gate` go on: a run cannot be over before the test is ready for that."""
        (self.folder / "open").touch()

    @property
    def weights(self) -> list[str]:
        return re.findall(r"weights (\w+) after", self.output)

    def memory(self) -> list[str]:
        """What the run has in shared memory on this host."""
        try:
            return sorted(os.listdir(folder_of(self.name)))
        except (SegmentGone, FileNotFoundError):
            return []

    def assert_clean(self) -> None:
        """The ledger is right, and nothing is left behind."""
        for events in report.jobs(read(self.path)).values():
            assert report.check(events).findings == [], self.output
        assert ranks_of(self.name) == []
        assert self.memory() == []
        assert processes(self.name) == [], [Path(f"/proc/{one}/cmdline").read_bytes() for one in processes(self.name)]

    def clean_up(self) -> None:
        """End what a failed test has left."""
        if self._late is not None:
            self._late.cancel()
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        for process in processes(self.name):
            os.kill(process, signal.SIGKILL)


def processes(pattern: str) -> list[int]:
    """Those whose command line or environment names a run."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                text = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            except OSError:
                continue
            if re.search(pattern, text.replace(b"\0", b" ").decode(errors="replace")):
                found.append(int(folder.name))
    return found
