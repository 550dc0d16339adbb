"""Processes, including ones that are not our children: /proc tells if they are alive and what they do.

To kill a process later, keep its `Identity`, not its number.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

TICK = 1 / os.sysconf("SC_CLK_TCK")
MOST = 1 << 22
"""The greatest number that a process can have."""
EXITING = 4
"""The kernel's flag of a process that ends (PF_EXITING)."""


def born(process: int) -> int:
    """Return when a process was started, in kernel ticks; with its number, this identifies it. 0 if it is gone."""
    found = _stat(process)
    return 0 if found is None else int(found[19])


def is_alive(process: int, since: int = 0) -> bool:
    """Whether a process is running (or stopped), and is the one that was started then. A zombie is not alive."""
    found = _stat(process)
    return found is not None and found[0] not in "ZX" and since in (0, int(found[19]))


def is_exiting(process: int, since: int) -> bool:
    """Whether a process has begun to exit, or is already gone.

    The kernel first frees its memory and only then tells its parent: with the memory of a framework that takes 30
    to 50 ms, longer than everything else in a repair.
    """
    found = _stat(process)
    return found is None or int(found[19]) != since or bool(int(found[6]) & EXITING)


def is_stopped(process: int) -> bool:
    """Whether a process was stopped by a signal; by a debugger does not count."""
    found = _stat(process)
    return found is not None and found[0] == "T"


@dataclass(frozen=True)
class Identity:
    """Identifies one process for good: numbers are reused, and mean nothing after a boot or in another container."""

    number: int = 0
    """0: no process."""
    born: int = 0
    boot: int = 0
    """A number for the boot of the machine."""
    space: int = 0
    """The PID namespace that the number belongs to."""

    @classmethod
    def of(cls, process: int) -> Identity:
        """Return the identity of the process that has this number now; that of no process if there is none."""
        since = born(process)
        return cls(process, since, *_place(os.getpid())) if since else cls()

    @property
    def visible(self) -> bool:
        """Whether this process could tell if it is alive: the number is of this boot and of this PID namespace."""
        return (self.boot, self.space) == _place(os.getpid())

    @property
    def alive(self) -> bool:
        """Whether it is known to live."""
        return self.visible and is_alive(self.number, self.born)

    @property
    def exiting(self) -> bool:
        """Whether it has begun to exit, or is gone already."""
        return not self.visible or is_exiting(self.number, self.born)

    def kill(self, how: int = signal.SIGKILL) -> None:
        """Send it a signal, and never to another process that has its number by now."""
        if not self.alive:
            return
        try:
            file = os.pidfd_open(self.number)
        except OSError as error:
            if error.errno == errno.ENOSYS:  # an old kernel: accept the race since we looked
                kill(self.number, how)
            return
        try:
            if self.alive:  # so the descriptor refers to this process, and keeps doing so
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(file, how)
        finally:
            os.close(file)

    def kill_group(self) -> None:
        """Kill everything that it has started, if it leads a session, even if it is gone itself.

        The kernel gives its number to no other process while the group exists: if another process has the number, the
        group is gone, and a group of that number belongs to that process.
        """
        if 0 < self.number <= MOST and self.visible and born(self.number) in (0, self.born):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.number, signal.SIGKILL)


@cache
def _place(process: int) -> tuple[int, int]:
    """(boot, PID namespace) of this process, whose number is given because a child may be in another namespace."""
    del process
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    return int(boot[:15], 16), os.stat("/proc/self/ns/pid").st_ino


def name(process: int) -> str:
    """The name of a process's program; empty if it is gone."""
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""


def running(*words: str, any_network: bool = False) -> list[int]:
    """Processes of this user on this host whose command line has these words one after another.

    A process in another network or PID namespace counts as on another host, even if it has a number here (containers,
    `meshmend testbed`); with `any_network`, only one in another PID namespace does.
    """
    wanted, found = "\0".join(["", *words, ""]).encode(), []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            process = int(path.parent.name)
            if wanted in path.read_bytes() and path.stat().st_uid == os.geteuid() and is_here(process, any_network):
                found.append(process)
    return found


def is_here(process: int, any_network: bool = False) -> bool:
    """Whether a process is on this host: in the same network (unless any will do) and PID namespace as this one."""
    kinds = ("pid",) if any_network else ("pid", "net")
    try:
        return all(os.readlink(f"/proc/{process}/ns/{kind}") == os.readlink(f"/proc/self/ns/{kind}") for kind in kinds)
    except OSError:
        return False


def kill(process: int, how: int = signal.SIGKILL) -> None:
    """Send a signal to a process that may be gone already."""
    if process > 0:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, how)


def handles(process: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal, which would otherwise end it."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


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
    """Tells if one process has begun to exit. Its file stays open, so a check takes a fifth of the time."""

    def __init__(self, process: Identity) -> None:
        self._file = -1
        if not process.exiting:  # else it is in another PID namespace, or gone
            with contextlib.suppress(OSError):
                self._file = os.open(f"/proc/{process.number}/stat", os.O_RDONLY | os.O_CLOEXEC)

    def is_exiting(self) -> bool:
        """Whether it has; False if it cannot be seen from here."""
        try:
            return self._file >= 0 and bool(int(os.pread(self._file, 1024, 0).rpartition(b")")[2].split()[6]) & EXITING)
        except ProcessLookupError:
            return True


class Doing(StrEnum):
    """What a process does."""

    GONE = "gone"
    STOPPED = "stopped"
    TRACED = "traced"
    RUNNING = "running"
    """Some thread of it is."""
    WAITING = "waiting"


def doing(process: int) -> tuple[Doing, float]:
    """What a process does, and the processor time that it has used, in seconds."""
    found = _stat(process)
    if found is None:
        return Doing.GONE, 0.0
    used = (int(found[11]) + int(found[12])) * TICK
    if found[0] in "Tt":
        return (Doing.STOPPED if found[0] == "T" else Doing.TRACED), used
    with contextlib.suppress(OSError):
        threads = (f"/proc/{process}/task/{thread}/stat" for thread in os.listdir(f"/proc/{process}/task"))
        if any(state[0] == "R" for state in map(_words, threads) if state):
            return Doing.RUNNING, used
    return Doing.WAITING, used


def _stat(process: int) -> list[str] | None:
    return _words(f"/proc/{process}/stat") if process > 0 else None


def _words(path: str) -> list[str] | None:
    """The words after the name, which may hold anything."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(file, 4096).rpartition(b")")[2].decode().split()
        finally:
            os.close(file)
    except OSError:
        return None


def cores_to_spare(workers: int) -> bool:
    """Whether this host has a core for each of so many workers, for its courier, and as many more."""
    return len(os.sched_getaffinity(0)) >= 4 * workers
