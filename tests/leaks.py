"""What a test leaves behind: processes, shared memory and network namespaces that outlive it.

Several tests run at once, in several pytest workers, beside whatever else the machine does; so a thing counts as left
by a test only if it bears the test's mark. Processes inherit a variable that is set while the test runs. Namespaces and
files in shared memory bear the number of the process that made them, or the name of a run: they count when they are
new, nothing that lives uses them, and nothing removes them.

A look costs about a millisecond: only processes that are new since the test began are read.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from meshmend.base.processes import is_alive, kill
from meshmend.testbed import namespaces

VARIABLE = "MESHMEND_TEST"
PATIENCE = 60.0
"""Seconds in which what is about to end may end."""
MEMORY = Path("/dev/shm")
ENDURING = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")
"""Helpers of Python's own that serve all tests of a process."""
NUMBERS = count()


@dataclass
class Watch:
    """One test, from its begin to its end."""

    mark: str = field(default_factory=lambda: f"{os.getpid()}-{next(NUMBERS)}")
    processes: set[str] = field(default_factory=lambda: set(os.listdir("/proc")))
    things: set[Path] = field(default_factory=lambda: set(_things()))

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        """Mark what is started meanwhile."""
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = self.mark
        try:
            yield
        finally:
            os.environ.pop(VARIABLE)
            if before is not None:
                os.environ[VARIABLE] = before

    def running(self) -> dict[int, str]:
        """The processes of this test that live: their numbers and command lines."""
        found = {}
        for name in set(os.listdir("/proc")) - self.processes:
            if name.isdigit() and is_alive(int(name)) and self._is_ours(int(name)):
                line = _read(int(name), "cmdline")
                if not any(word in line for word in ENDURING):
                    found[int(name)] = line.replace(b"\0", b" ").decode(errors="replace").strip()
        return found

    def _is_ours(self, process: int) -> bool:
        if f"\0{VARIABLE}={self.mark}\0".encode() in b"\0" + _read(process, "environ"):
            return True
        words = _read(process, "stat").rpartition(b")")[2].split()
        return len(words) > 1 and int(words[1]) == os.getpid()  # a child without our environment, or a fork

    def left(self) -> list[Path]:
        """Shared memory and namespaces that are new, and that nothing uses which lives."""
        return [path for path in sorted(set(_things()) - self.things) if not _in_use(path)]

    def remains(self, patience: float = PATIENCE) -> list[str]:
        """Name what is left of this test, once what was about to end has ended, and remove it."""
        deadline = time.monotonic() + patience
        while (running := self.running()) or (left := self.left()):
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
        else:
            return []
        for process in running:
            kill(process, signal.SIGKILL)
        left = self.left()
        for path in left:
            _remove(path)
        return [*(f"process {number}: {line[:300]}" for number, line in running.items()), *map(str, left)]


def close_processes() -> None:
    """Close what a failed test holds of its child processes.

    Its traceback keeps them: they would be collected, with a warning that is an error, in the middle of a later test.
    """
    for process in [found for found in gc.get_objects() if isinstance(found, subprocess.Popen)]:
        if process.returncode is None:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _read(process: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{process}/{what}").read_bytes()
    except OSError:
        return b""


def _things() -> Iterator[Path]:
    for folder in (MEMORY, namespaces.RUN):
        with contextlib.suppress(OSError):
            yield from (folder / name for name in os.listdir(folder) if name.startswith(namespaces.PREFIX))


def _in_use(path: Path) -> bool:
    """True if the process in its name lives elsewhere, or any process names it, has it mapped, or names its run."""
    owner = namespaces.owner_of(path.name)
    if owner:
        return owner != os.getpid() and is_alive(owner)
    run = path.name.removeprefix(namespaces.PREFIX).rpartition("-")[0]
    if f"-{os.getpid()}-" in path.name:  # the name of a run of this pytest worker
        return False
    words = [path.name.encode(), *([b" " + run.encode() + b" ", b"=" + run.encode() + b" "] if run else [])]
    for name in os.listdir("/proc"):
        if name.isdigit() and name != str(os.getpid()):
            text = b"\0".join(_read(int(name), what) for what in ("cmdline", "environ", "maps")) + b"\0"
            if any(word in text.replace(b"\0", b" ") for word in words):
                return True
    return False


def _remove(path: Path) -> None:
    if path.parent == namespaces.RUN:
        namespaces.remove(path.name)
    elif path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
