"""A network that only the processes of one run have: a namespace with nothing in it but loopback.

Open MPI believes what a client says about its user, and starts programs for it. So whoever can connect to mpirun can
run code as the user of the run. To tie its ports to loopback keeps other machines out, but not the other users of the
host. In another network namespace, those have no way to connect at all.

A child makes the namespace, and ends when it is held open here. Root may simply make one; anybody else makes a
namespace of users first, with itself in it, where the system allows that (most do; many containers do not).

This file is run as a script too, without the package, so that a world need not wait long for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000
"""Flags of unshare(2)."""
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1
"""To bring up a network device (netdevice(7))."""


@dataclass(frozen=True)
class PrivateNetwork:
    """A network namespace, held open."""

    files: Sequence[int]
    """The namespaces to enter, one after another."""

    def enter(self) -> None:
        """Called in a child: be in this network from now on."""
        for file in self.files:
            _done(_libc().setns(file, 0))


@cache
def private_network() -> PrivateNetwork | None:
    """The one of this process, made when it is first asked for; None where the system does not allow one."""
    from meshmend.base.clocks import NETWORK_START  # not above: as a script, this file has no package

    child = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        ready = select.poll()
        ready.register(child.stdout, select.POLLIN)
        if not ready.poll(NETWORK_START * 1000) or not child.stdout.read(1):
            return None
        with contextlib.suppress(OSError):
            return PrivateNetwork([_held(child.pid, kind) for kind in ("user", "net") if _differs(child.pid, kind)])
        return None
    finally:
        child.kill()
        child.communicate()


def _differs(process: int, kind: str) -> bool:
    return os.readlink(f"/proc/{process}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")


def _held(process: int, kind: str) -> int:
    return os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _done(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _make() -> None:
    """Put this process into a network of its own, and bring loopback up there."""
    user, group = os.geteuid(), os.getegid()
    _done(_libc().unshare(NEW_NETWORK if user == 0 else NEW_USER | NEW_NETWORK))
    if user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_:
        name, flags = struct.unpack_from("16sh", fcntl.ioctl(any_, GET_FLAGS, struct.pack("16sh14x", b"lo", 0)))
        fcntl.ioctl(any_, SET_FLAGS, struct.pack("16sh14x", name, flags | UP))


if __name__ == "__main__":
    _make()
    os.write(1, b".")
    os.read(0, 1)  # until the parent has seen it, or is gone
