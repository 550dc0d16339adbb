"""What a test leaves behind: processes, shared memory and network namespaces that outlive it.

Several tests run at once, in several pytest workers, beside whatever else the machine does; so a thing counts as left
by a test only if it bears the test's mark. Processes inherit a variable that is set while the test runs. Namespaces and
folders in shared memory bear the number of the process that made them, or the name of a run: they count if one of the
words in that name is the number of this process or of one that the test has started, or if the name is a word of a
command that the test has started. Segments of an MPI without mpirun bear no such name: each test has a folder for them.

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
from typing import Any

from meshmend.base.processes import is_alive, kill
from meshmend.job.shm import home
from meshmend.testbed import namespaces

VARIABLE = "MESHMEND_TEST"
SEGMENTS = "OMPI_MCA_btl_sm_backing_directory"
"""Where Open MPI puts its shared memory, unless the command line of mpirun names another folder."""
PATIENCE = 120.0
"""Seconds in which what is about to end may end."""
ENDURING = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")
"""Helpers of Python's own that serve all tests of a process."""
NUMBERS = count()


@dataclass
class Watch:
    """One test, from its begin to its end."""

    mark: str = field(default_factory=lambda: f"{os.getpid()}-{next(NUMBERS)}")
    processes: set[str] = field(default_factory=lambda: set(os.listdir("/proc")))
    things: set[Path] = field(default_factory=lambda: set(_things()))
    numbers: set[int] = field(default_factory=lambda: {os.getpid()})
    """Of the processes that the test is or has started."""
    words: set[str] = field(default_factory=set)
    """Of the commands that it has started."""
    segments: Path = field(init=False)
    """Where Open MPI has its shared memory meanwhile."""

    def __post_init__(self) -> None:
        self.segments = home.MEMORY / f"test-{self.mark}"

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        """Mark what is started meanwhile."""
        before, begin = {name: os.environ.get(name) for name in (VARIABLE, SEGMENTS)}, subprocess.Popen.__init__

        def recorded(process: subprocess.Popen[Any], args: Any, *more: Any, **options: Any) -> None:
            begin(process, args, *more, **options)
            self.numbers.add(process.pid)
            self.words |= {args} if isinstance(args, (str, bytes, os.PathLike)) else set(map(str, args))

        self.segments.mkdir()
        os.environ |= {VARIABLE: self.mark, SEGMENTS: str(self.segments)}
        subprocess.Popen.__init__ = recorded  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            subprocess.Popen.__init__ = begin  # type: ignore[method-assign]
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value

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
        """Shared memory and namespaces that this test has made."""
        found = [path for path in sorted(set(_things()) - self.things) if self._made(path.name)]
        with contextlib.suppress(OSError):
            found += sorted(self.segments.iterdir())
        return found

    def _made(self, name: str) -> bool:
        owner = namespaces.owner_of(name) if name.startswith(namespaces.PREFIX) else 0  # else it is a run's name
        if owner:
            return owner in self.numbers
        return name in self.words or not {str(number) for number in self.numbers}.isdisjoint(name.split("-"))

    def remains(self, patience: float = PATIENCE) -> list[str]:
        """Name what is left of this test, once what was about to end has ended, and remove it."""
        deadline = time.monotonic() + patience
        while (running := self.running()) or (left := self.left()):
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
        else:
            shutil.rmtree(self.segments, ignore_errors=True)
            return []
        for process in running:
            kill(process, signal.SIGKILL)
        left = self.left()
        for path in left:
            _remove(path)
        shutil.rmtree(self.segments, ignore_errors=True)
        return [*(f"process {number}: {line[:300]}" for number, line in running.items()), *map(str, left)]


def close_processes() -> None:
    """Close what a failed test holds of its child processes.

    Its traceback keeps them: they would be collected, with a warning that is an error, in the middle of a later test.
    """
    # Not isinstance: that asks lazy modules for their class, and some warn when they are asked.
    for process in [found for found in gc.get_objects() if issubclass(type(found), subprocess.Popen)]:
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
    """Runs, which lie in the private folders of this user, and whatever else bears our name."""
    ours = home.homes()
    yield from home.runs()
    for folder in (home.MEMORY, namespaces.RUN):
        with contextlib.suppress(OSError):
            found = (folder / name for name in os.listdir(folder) if name.startswith(namespaces.PREFIX))
            yield from (path for path in found if path not in ours)


def _remove(path: Path) -> None:
    if path.parent == namespaces.RUN:
        namespaces.remove(path.name)
    elif path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
