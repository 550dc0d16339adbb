"""Keeps the sockets on which a process listens off the network, where nobody but this host needs them.

Open MPI listens on all addresses of a host and has no option for less. A socket can be tied to a network device later,
also by the parent of the process that has it, and without privileges (Linux 5.7); connections of a host to its own
addresses come over loopback.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import time
from collections.abc import Iterator
from functools import cache

from meshmend.base.processes import is_alive

PIDFD_GETFD = 438
"""The number of the system call that copies another process's file; the same on all architectures."""
PAUSE = 0.05
LOOPBACK = ("127.", "::1")
INET = (socket.AF_INET, socket.AF_INET6)


def keep_local(process: int, seconds: float = 0.0) -> None:
    """Tie to loopback what a process listens on; look for so long at one that has just been started."""
    until = time.monotonic() + seconds
    while True:
        for found in _listening(process):
            with contextlib.suppress(OSError):  # an old kernel: the socket stays as it is
                found.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
        if time.monotonic() >= until or not is_alive(process):
            return
        time.sleep(PAUSE)


def _listening(process: int) -> Iterator[socket.socket]:
    """Sockets of a process that accept connections from more than this host; copies, which are closed again."""
    with contextlib.suppress(OSError):  # it has ended, or belongs to somebody else
        for name in os.listdir(f"/proc/{process}/fd"):
            with contextlib.suppress(OSError):
                if not os.readlink(f"/proc/{process}/fd/{name}").startswith("socket:"):
                    continue
                with socket.socket(fileno=_copied(process, int(name))) as found:
                    accepts = found.family in INET and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                    tied = found.family in INET and found.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
                    if accepts and not tied and not found.getsockname()[0].startswith(LOOPBACK):
                        yield found


@cache
def _libc() -> ctypes.CDLL:
    """One for all: each makes types of its own, which Python frees late, and the launcher of a long run would grow."""
    return ctypes.CDLL(None, use_errno=True)


def _copied(process: int, number: int) -> int:
    """A copy of a file that a process has open."""
    if process == os.getpid():
        return os.dup(number)
    pidfd = os.pidfd_open(process)
    try:
        copy = _libc().syscall(PIDFD_GETFD, pidfd, number, 0)
    finally:
        os.close(pidfd)
    if copy < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(copy)
