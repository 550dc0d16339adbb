"""A worker's port, at which workers of other hosts read the rows that this one holds: a thread for each of them.

A connection begins with a proof from both sides that they know the key that this worker has told the members of its job
(`contacts.py`). Until then nothing that a client says is kept but those few bytes, and that not for long.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable

from meshmend.base.clocks import ACCEPT_RETRY, ROWS_ANSWER
from meshmend.base.proofs import NUMBER, SIZE, new_number
from meshmend.errors import JobError
from meshmend.job.embeddings.contacts import ASKS, HOLDS, Contact
from meshmend.job.embeddings.requests import Copies, answer, asked, receiver
from meshmend.job.embeddings.shape import Ids

STRANGERS = 64
"""Connections that have proved nothing yet, at most; a new one replaces the oldest."""


class RowsPort:
    """Answers for this worker's copies, from here to `close`."""

    def __init__(self, address: str, copies: Copies, version: Callable[[], int], sizes: Ids) -> None:
        self._copies, self._version, self._sizes = copies, version, sizes
        try:
            self._socket = socket.create_server((address, 0), family=socket.AF_INET)
        except OSError as error:
            raise JobError(
                f"cannot listen on {address}, where other hosts would ask this worker for rows of embedding tables: "
                f"{error.strerror}"
            ) from None
        self.contact = Contact(address, self._socket.getsockname()[1])
        self._strangers: list[socket.socket] = []
        self._readers: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name="rows", daemon=True).start()

    def close(self) -> None:
        """Answer nobody any more."""
        _wake(self._socket)
        self._socket.close()
        with self._lock:
            for line in (*self._strangers, *self._readers):
                _wake(line)

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._socket.accept()
            except OSError:
                if self._socket.fileno() < 0:
                    return
                time.sleep(ACCEPT_RETRY)  # too many open files, which may change
                continue
            with self._lock:
                self._strangers.append(line)
                if len(self._strangers) > STRANGERS:
                    _wake(self._strangers.pop(0))
            threading.Thread(target=self._serve, args=[line], name="rows", daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with line:
            try:
                if self._knows(line):
                    self._answer(line)
            except OSError:
                pass
            finally:
                with self._lock:
                    for lines in (self._strangers, self._readers):
                        if line in lines:
                            lines.remove(line)

    def _answer(self, line: socket.socket) -> None:
        with self._lock:
            if line in self._strangers:
                self._strangers.remove(line)
            self._readers.append(line)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a host that is gone says nothing
        while True:
            version, wanted = asked(receiver(line, math.inf), self._sizes)
            line.settimeout(ROWS_ANSWER)
            line.sendall(answer(self._copies, version, wanted, self._version))

    def _knows(self, line: socket.socket) -> bool:
        number = new_number()
        line.settimeout(ROWS_ANSWER)
        line.sendall(number)
        said = receiver(line, time.monotonic() + ROWS_ANSWER)(NUMBER + SIZE)
        numbers = number + said[:NUMBER]
        if not self.contact.proves(said[NUMBER:], ASKS, numbers):
            return False
        line.sendall(self.contact.proof(HOLDS, numbers))
        return True


def _wake(line: socket.socket) -> None:
    """End a socket that a thread waits for, which then closes it."""
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)


class Unreachable(OSError):
    """There is no way to a host now, or nothing is heard from it."""


def connect(contact: Contact) -> socket.socket:
    """A connection to the worker that has this contact; `OSError` where there is none.

    A host accepts it for a worker that is busy, so it is the host that is silent where none comes about.
    """
    until = time.monotonic() + ROWS_ANSWER
    try:
        line = socket.create_connection((contact.address, contact.port), ROWS_ANSWER)
    except ConnectionError:
        raise
    except OSError as error:
        raise Unreachable(str(error)) from None
    try:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        receive = receiver(line, until)
        own = new_number()
        numbers = receive(NUMBER) + own
        line.sendall(own + contact.proof(ASKS, numbers))
        if not contact.proves(receive(SIZE), HOLDS, numbers):
            raise ConnectionError("another process answers there")
    except BaseException:
        line.close()
        raise
    return line
