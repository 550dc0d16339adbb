"""Processes by number, including those that are not our children: /proc tells if they live and what they do."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
from collections.abc import Iterable
from pathlib import Path

TICK = 1 / os.sysconf("SC_CLK_TCK")
EXITING = 4
"""The kernel's flag of a process that ends (PF_EXITING)."""


def born(process: int) -> int:
    """When a process was started, in the kernel's ticks; with its number, this names it for ever. 0 if it is gone."""
    found = _stat(process)
    return 0 if found is None else int(found[19])


def is_alive(process: int, since: int = 0) -> bool:
    """Whether a process runs (or is stopped), and is the one that was started then. A zombie is not alive."""
    found = _stat(process)
    return found is not None and found[0] not in "ZX" and since in (0, int(found[19]))


def is_exiting(process: int, since: int) -> bool:
    """Whether a process has begun to exit, or is gone already.

    The kernel first takes back its memory and only then tells its parent: with the memory of a framework that takes 30
    to 50 ms, longer than everything else in a repair.
    """
    found = _stat(process)
    return found is None or int(found[19]) != since or bool(int(found[6]) & EXITING)


def name(process: int) -> str:
    """The name of a process's program; empty if it is gone."""
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""


def running(*words: str) -> list[int]:
    """Processes of this host whose command line has these words one after another.

    A process in another network namespace counts as on another host, even if it has a number here (containers,
    `meshmend testbed`).
    """
    wanted, found, here = "\0".join(["", *words, ""]).encode(), [], _network(os.getpid())
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if wanted in path.read_bytes() and _network(int(path.parent.name)) == here:
                found.append(int(path.parent.name))
    return found


def _network(process: int) -> str:
    return os.readlink(f"/proc/{process}/ns/net")


def kill(process: int, how: int = signal.SIGKILL) -> None:
    """Send a signal to a process that may be gone already."""
    if process > 0:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, how)


def kill_group(leader: int) -> None:
    """Kill all that a session leader has started, even if the leader itself is gone."""
    if leader > 0:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def signal_name(number: int) -> str:
    """Such as SIGKILL; some signals have only a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def die_with_parent() -> None:
    """Called in a child: the kernel kills it when its parent dies (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class ExitProbe:
    """Tells if one process has begun to exit. Its file stays open, so a look takes a fifth of the time."""

    def __init__(self, process: int, since: int) -> None:
        self._file = -1
        if not is_exiting(process, since):  # else it is in another PID namespace, or gone
            with contextlib.suppress(OSError):
                self._file = os.open(f"/proc/{process}/stat", os.O_RDONLY | os.O_CLOEXEC)

    def is_exiting(self) -> bool:
        """Whether it has; False if it cannot be seen from here."""
        try:
            return self._file >= 0 and bool(int(os.pread(self._file, 1024, 0).rpartition(b")")[2].split()[6]) & EXITING)
        except ProcessLookupError:
            return True


class ExitWaiter:
    """Sleeps until one of some processes ends, so that they need not be polled."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}

    def wait(self, processes: Iterable[int], seconds: float, *others: int) -> None:
        """Sleep until one of these ends or one of the other files can be read, at most for so long."""
        wanted = {process for process in processes if process > 0}
        for process in self._files.keys() - wanted:
            self._forget(process)
        for process in wanted - self._files.keys():
            with contextlib.suppress(OSError):  # it is gone already, which the caller will see
                self._files[process] = os.pidfd_open(process)
        ready = select.select([*self._files.values(), *others], [], [], seconds)[0]
        for process, file in list(self._files.items()):
            if file in ready:
                self._forget(process)

    def _forget(self, process: int) -> None:
        os.close(self._files.pop(process))


def doing(process: int) -> tuple[str, float]:
    """(state, processor time used in seconds): "stopped", "traced", "running" if any thread is, else "waiting"."""
    found = _stat(process)
    if found is None:
        return "gone", 0.0
    used = (int(found[11]) + int(found[12])) * TICK
    if found[0] in "Tt":
        return ("stopped" if found[0] == "T" else "traced"), used
    threads = Path(f"/proc/{process}/task")
    with contextlib.suppress(OSError):
        if any(state[0] == "R" for state in map(_words, threads.glob("*/stat")) if state):
            return "running", used
    return "waiting", used


def _stat(process: int) -> list[str] | None:
    return _words(Path(f"/proc/{process}/stat")) if process > 0 else None


def _words(path: Path) -> list[str] | None:
    """The words after the name, which may hold anything."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
