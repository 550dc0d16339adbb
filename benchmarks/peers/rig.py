"""Starts one system, watches its notes, and ends everything that it started, by process id."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from systems import ONE_THREAD, System, free_port, lighthouse, lines

MEMORY = Path("/dev/shm")
MARK = "PEERS_RUN"
Record = dict[str, Any]


class TooLate(Exception):
    """What was waited for did not come in time."""


class Over(Exception):
    """Everything has ended."""


@dataclass
class Process:
    """The notes of one process."""

    rank: int
    pid: int
    path: Path
    seen: float
    records: list[Record] = field(default_factory=list)
    offset: int = 0

    def done(self) -> list[Record]:
        """Its committed steps."""
        return [one for one in self.records if one.get("counted")]

    def parts(self) -> int:
        """How many workers took part in its last step."""
        done = self.done()
        return int(done[-1]["parts"]) if done else 0

    def last(self) -> int:
        """How many steps it has committed."""
        done = self.done()
        return int(done[-1]["done"]) if done else 0


class Rig:
    """A running system; everything is ended and cleaned up at the end."""

    def __init__(self, system: System, size: int, workers: int) -> None:
        self.system, self.size, self.workers = system, size, workers
        self.name = f"peers-{uuid.uuid4().hex[:8]}"
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        self.notes, self.memory = self.folder / "notes", MEMORY / self.name
        self.notes.mkdir()
        self.memory.mkdir(mode=0o700)
        self.processes: dict[str, Process] = {}
        self.children: list[subprocess.Popen[bytes]] = []
        self.groups: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Rig:
        try:
            self._begin()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            alive = [pid for pid in mine(self.name) if _signal(pid, signal.SIGKILL)]
            for child in self.children:
                child.poll()
            if not alive:
                break
            time.sleep(0.02)
        for child in self.children:
            child.wait(10)
        shutil.rmtree(self.folder, ignore_errors=True)
        for left in [*MEMORY.glob(f"*{self.name}*"), *MEMORY.glob(f"meshmend-*/{self.name}*")]:
            shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)

    def _begin(self) -> None:
        port = free_port()
        if self.system.how == "torchft":
            self._start(lighthouse(self.system, self.size, port), "lighthouse")
        self._lines = lines(self.system, self.size, self.workers, port, self.folder, self.memory)
        for number, line in enumerate(self._lines):
            self.groups.append(self._start(line, f"{number}"))

    def _start(self, line: Any, name: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.out").open("ab") as out:
            child = subprocess.Popen(
                line.words, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True, cwd=self.folder,
                env={
                    **os.environ, **ONE_THREAD, **line.settings, MARK: self.name, "PEERS_NOTES": str(self.notes),
                    "TMPDIR": str(self.folder),
                },
            )  # fmt: skip
        self.children.append(child)
        return child

    def look(self) -> None:
        """Read what was noted since; a torchft group that has died is started again, as a scheduler would."""
        for path in self.notes.glob("*.jsonl"):
            if path.name not in self.processes:
                rank, pid = path.stem.split("-")
                self.processes[path.name] = Process(int(rank), int(pid), path, time.monotonic())
            one = self.processes[path.name]
            with path.open("rb") as file:
                file.seek(one.offset)
                data = file.read()
            whole = data.rfind(b"\n") + 1
            one.offset += whole
            one.records += [json.loads(line) for line in data[:whole].splitlines()]
        if self.system.how == "torchft":
            for number, group in enumerate(self.groups):
                if group.poll() is not None:
                    self.groups[number] = self._start(self._lines[number], f"{number}")

    def wait(self, found: Callable[[], Any], seconds: float) -> Any:
        """What `found` gives, once it gives something."""
        until = time.monotonic() + seconds
        while True:
            self.look()
            out = found()
            if out is not None:
                return out
            if all(child.poll() is not None for child in self.groups):
                raise Over(self.output())
            if time.monotonic() > until:
                raise TooLate(self.output())
            time.sleep(0.002)

    def living(self) -> list[Process]:
        """Processes with notes that still run, by rank."""
        found = [one for one in self.processes.values() if _state(one.pid) not in ("", "Z")]
        return sorted(found, key=lambda one: one.rank)

    def output(self) -> str:
        """The end of what it printed."""
        return "\n".join(path.read_text(errors="replace")[-1500:] for path in self.folder.glob("*.out"))

    def ledger(self) -> list[Record]:
        """The committed steps as meshmend wrote them down; empty for others."""
        found = []
        for path in (self.folder / self.name / "events").glob("worker-*.jsonl"):
            for line in path.read_text().splitlines():
                if '"kind":"Committed"' in line:
                    found.append(json.loads(line))
        return found


def mine(name: str) -> Iterator[int]:
    """All processes that a rig has started, and theirs: known by a variable of their environment."""
    mark = f"{MARK}={name}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (path / "environ").read_bytes().split(b"\0"):
                yield int(path.name)
        except OSError:
            continue


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
