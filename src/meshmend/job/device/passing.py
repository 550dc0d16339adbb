"""How a worker gets the file descriptor of another worker's device memory: over a Unix socket in the run's folder.

    RANK.device    the socket of one worker: a client immediately gets a description of the memory and its descriptor
    RANK.lent      the same for a state that it lends (`states.py`)

Only this user can enter the folder, and both sides check with the kernel who the other one is. Only a live worker can
hand out a descriptor, so members map each other's memory when their group is formed, not when they need it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

from meshmend.base.clocks import DEVICE_LOOK, DEVICE_POLL, DEVICE_WAIT
from meshmend.errors import DeviceError

SUFFIX = "device"
LENT = "lent"


@dataclass(frozen=True)
class About:
    """What a descriptor refers to."""

    birth: int
    """Which worker of that rank made it."""
    generation: int
    """Which buffers of that worker it belongs to."""
    kind: int
    """The number of its kind of memory."""
    nbytes: int

    def packed(self) -> bytes:
        """As it is sent."""
        return FORMAT.pack(*astuple(self))


FORMAT = struct.Struct("=4q")


class Offer:
    """A worker's memory, for the workers of its host."""

    def __init__(
        self, folder: Path, rank: int, describe: Callable[[], tuple[About, int] | None], suffix: str = SUFFIX
    ) -> None:
        self._describe = describe
        """What it is now, and a descriptor, which is closed after it was sent; None while there is none."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._place = folder, rank, suffix
        with _reached(*self._place) as address:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(address)
            self._socket.bind(address)
        self._socket.listen(64)
        threading.Thread(target=self._serve, name="meshmend devices", daemon=True).start()

    def close(self) -> None:
        """Stop giving it out."""
        with _reached(*self._place) as address, contextlib.suppress(FileNotFoundError):
            os.unlink(address)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread

    def _serve(self) -> None:
        while True:
            try:
                other, _ = self._socket.accept()
            except OSError:
                self._socket.close()
                return
            with other, contextlib.suppress(OSError):  # it may be gone already
                other.settimeout(DEVICE_WAIT)
                if _is_ours(other) and (found := self._describe()) is not None:
                    about, file = found
                    try:
                        socket.send_fds(other, [about.packed()], [file])
                    finally:
                        os.close(file)


def fetch(folder: Path, rank: int, is_gone: Callable[[], bool], suffix: str = SUFFIX) -> tuple[About, int] | None:
    """The memory of another worker and its descriptor, which the caller closes; None if that worker is gone."""
    deadline, why = time.monotonic() + DEVICE_WAIT, "it does not answer"
    while not is_gone():
        try:
            found = _asked(folder, rank, suffix)
        except OSError as error:
            found, why = None, str(error)
        if found is not None:
            return found
        if time.monotonic() > deadline:
            raise DeviceError(f"rank {rank} did not export its device memory ({why})")
        time.sleep(DEVICE_POLL)
    return None


def _asked(folder: Path, rank: int, suffix: str) -> tuple[About, int] | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(DEVICE_LOOK)
        with _reached(folder, rank, suffix) as address:
            link.connect(address)
        if not _is_ours(link):
            raise OSError("another user's process answers")
        data, files, _, _ = socket.recv_fds(link, FORMAT.size, 1, socket.MSG_CMSG_CLOEXEC)
        if len(data) == FORMAT.size and len(files) == 1:
            return About(*FORMAT.unpack(data)), files[0]
        for file in files:
            os.close(file)
        return None


@contextlib.contextmanager
def _reached(folder: Path, rank: int, suffix: str) -> Iterator[str]:
    """A short address of a socket: the kernel takes no more than 107 bytes, and a run's name may be longer."""
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{place}/{rank}.{suffix}"
    finally:
        os.close(place)


def _is_ours(link: socket.socket) -> bool:
    """Whether the process at the other end is this user's."""
    found = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", found)[1] == os.geteuid())
