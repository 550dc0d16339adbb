"""Keeps the listening sockets of a process off networks that do not need them.

Open MPI listens on all addresses of a host and has no option for less. What a socket accepts can be narrowed later,
even by the parent of the process that has it, and without privileges (Linux 5.7):

    lo              it is bound to the loopback device, over which connections of a host to its own addresses come
    10.1.0.0/16     it gets a filter that drops traffic to addresses outside this network and loopback
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from functools import cache

from meshmend.base.clocks import SOCKETS_OPEN, SOCKETS_POLL
from meshmend.base.processes import is_alive

PIDFD_GETFD = 438
"""The number of the system call that copies another process's file; the same on all architectures."""
SO_ATTACH_FILTER = 26
SHORTEST = 8
"""Bits that the addresses of one network have in common, at least."""
LOCAL = "lo"
LOOPBACK = ("127.", "::1")
INET = (socket.AF_INET, socket.AF_INET6)


def keep_to(process: int, reach: str, seconds: float = 0.0) -> None:
    """Restrict a process's listening sockets to "lo" or to a network; a new process is polled for this long."""
    until, done = time.monotonic() + seconds, set[str]()
    while True:
        for name, found in _listening(process):
            if name not in done:
                done.add(name)
                with contextlib.suppress(OSError):  # an old kernel: the socket stays unrestricted
                    _narrow(found, reach)
        if time.monotonic() >= until or not is_alive(process):
            return
        time.sleep(SOCKETS_POLL)


def common_network(addresses: Iterable[str]) -> str:
    """The smallest network that all of these are in; empty if there is none.

    There is none for addresses that are not of IPv4, or of loopback, or have next to nothing in common.
    """
    import ipaddress  # 5 ms, which a courier of one host need not wait for

    try:
        found = [ipaddress.IPv4Address(address) for address in addresses]
    except ValueError:
        return ""
    if not found or any(address.is_loopback or address.is_unspecified for address in found):
        return ""
    first, last = int(min(found)), int(max(found))
    length = 32 - (first ^ last).bit_length()
    return str(ipaddress.IPv4Network((first, length), strict=False)) if length >= SHORTEST else ""


def address_towards(address: str) -> str:
    """Return the address of this host from which it would connect to another one; empty if there is no route."""
    with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing
        return str(probe.getsockname()[0])
    return ""


def _narrow(found: socket.socket, reach: str) -> None:
    if reach == LOCAL:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, LOCAL.encode())
        return
    import ipaddress  # as above

    network = ipaddress.IPv4Network(reach)
    program = _filter(int(network.network_address), int(network.netmask))
    buffer = ctypes.create_string_buffer(program, len(program))
    found.setsockopt(
        socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", len(program) // 8, ctypes.addressof(buffer))
    )


def _filter(network: int, mask: int) -> bytes:
    """A program for the kernel (classic BPF) that passes what is sent to an address of this network or of loopback.

    Connections inherit it. It sees the packet from the header of IP on; what is not of IPv4 is dropped.
    """
    byte, word, both, equal, end = 0x30, 0x20, 0x54, 0x15, 0x06  # load, load, and, jump if equal, return
    header = (1 << 32) - 0x100000  # SKF_NET_OFF
    to = header + 16
    lines = [
        (byte, 0, 0, header), (both, 0, 0, 0xF0), (equal, 0, 6, 0x40),
        (word, 0, 0, to), (both, 0, 0, mask), (equal, 4, 0, network),
        (word, 0, 0, to), (both, 0, 0, 0xFF000000), (equal, 1, 0, 0x7F000000),
        (end, 0, 0, 0), (end, 0, 0, 0xFFFFFFFF),
    ]  # fmt: skip
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def _listening(process: int) -> Iterator[tuple[str, socket.socket]]:
    """Sockets of a process that accept connections from other hosts too, by name; copies, which are closed again."""
    with contextlib.suppress(OSError):  # it has exited, or belongs to another user
        for number in os.listdir(f"/proc/{process}/fd"):
            with contextlib.suppress(OSError):
                name = os.readlink(f"/proc/{process}/fd/{number}")
                if not name.startswith("socket:"):
                    continue
                with socket.socket(fileno=_copied(process, int(number))) as found:
                    accepts = found.family in INET and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                    if accepts and not found.getsockname()[0].startswith(LOOPBACK):
                        yield name, found


@cache
def _libc() -> ctypes.CDLL:
    """Shared by all: each instance makes new types, which Python frees late, so a long run's launcher would grow."""
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


def main(process: int, reach: str) -> int:
    """`python -P -m meshmend.base.sockets PROCESS REACH`: keep a child of this process to a network, and wait for it.

    mpirun's daemons on other hosts are started like this (`run/world/daemon.sh`): many systems let only a parent touch
    the files of a process. They fork once more, and it is their child that listens.
    """
    until = time.monotonic() + SOCKETS_OPEN
    while time.monotonic() < until and is_alive(process):
        for one in [process, *_children(process)]:
            keep_to(one, reach)
        time.sleep(SOCKETS_POLL)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


def _children(process: int) -> list[int]:
    with contextlib.suppress(OSError), open(f"/proc/{process}/task/{process}/children") as file:
        return [int(word) for word in file.read().split()]
    return []


if __name__ == "__main__":
    sys.exit(abs(main(int(sys.argv[1]), sys.argv[2])))
