"""A port to which anyone may connect, and which only answers clients that prove that they know a secret.

A listener greets each connection with a number that is used once, reads a message of a fixed length, and answers it. It
keeps few connections, each for a short time, and serves them in a separate thread: a client that does not know the
secret blocks neither the process nor other clients.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from meshmend.base.clocks import ACCEPT_RETRY, ANSWER_POLL, PROBE_SILENCE
from meshmend.base.proofs import new_number

MOST = 64
"""How many connections are kept; a new one replaces the oldest."""
Answer = Callable[[bytes, bytes, str], bytes]
"""Makes the answer from the listener's number, the client's message and its address; empty: the client gets none."""


@dataclass
class _Caller:
    """A connection that has proved nothing yet."""

    line: socket.socket
    address: str
    number: bytes = field(default_factory=new_number)
    since: float = field(default_factory=time.monotonic)
    said: bytes = b""


class Listener:
    """One such port, for messages of this length."""

    def __init__(self, host: str, length: int) -> None:
        self._length = length
        self._socket = _listen(host)
        self._socket.setblocking(False)
        self.address, self.port = self._socket.getsockname()[:2]
        self._callers: dict[int, _Caller] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def serve(self, answer: Answer) -> None:
        """Answer from now on, including clients that connected earlier and have waited."""
        self._thread = threading.Thread(target=self._work, args=[answer], name="listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        if self._thread is not None:
            self._thread.join()
        self._socket.close()

    def _work(self, answer: Answer) -> None:
        with selectors.DefaultSelector() as events:
            events.register(self._socket, selectors.EVENT_READ)
            while not self._closed:
                for key, _ in events.select(PROBE_SILENCE if self._callers else None):
                    caller = self._callers.get(key.fd)
                    if caller is None and key.fileobj is self._socket:
                        self._accept(events)
                    elif caller is not None and self._hear(caller, answer):
                        self._drop(events, caller)
                late = time.monotonic() - PROBE_SILENCE
                for caller in [one for one in self._callers.values() if one.since < late or self._closed]:
                    self._drop(events, caller)

    def _accept(self, events: selectors.BaseSelector) -> None:
        try:
            line, address = self._socket.accept()
        except OSError:  # the client is gone again; or there are too many open files, which may change
            time.sleep(ACCEPT_RETRY)
            return
        if len(self._callers) == MOST:
            self._drop(events, next(iter(self._callers.values())))
        caller = _Caller(line, str(address[0]))
        self._callers[line.fileno()] = caller
        events.register(line, selectors.EVENT_READ)
        with contextlib.suppress(OSError):
            line.setblocking(False)
            line.send(caller.number)

    def _hear(self, caller: _Caller, answer: Answer) -> bool:
        """Read what has arrived, and answer a whole message; return whether the connection is finished."""
        try:
            data = caller.line.recv(self._length - len(caller.said))
        except BlockingIOError:
            return False
        except OSError:
            return True
        caller.said += data
        if data and len(caller.said) < self._length:
            return False
        if len(caller.said) == self._length:
            with contextlib.suppress(OSError):
                caller.line.send(answer(caller.number, caller.said, caller.address))
        return True

    def _drop(self, events: selectors.BaseSelector, caller: _Caller) -> None:
        del self._callers[caller.line.fileno()]
        events.unregister(caller.line)
        caller.line.close()


def _listen(host: str) -> socket.socket:
    """Listen on the address to which a host's name resolves here.

    If that is not an address of this host (its name means another host here), listen on loopback: a refused connection
    also shows that the host is reachable.
    """
    with contextlib.suppress(OSError):
        for family, *_, address in socket.getaddrinfo(host.rpartition("@")[2], 0, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError):
                return socket.create_server(address[:2], family=family)
    return socket.create_server(("127.0.0.1", 0))


def receive(line: socket.socket, size: int, until: float) -> bytes:
    """Receive this many bytes, before a deadline."""
    found = b""
    while len(found) < size:
        line.settimeout(max(until - time.monotonic(), ANSWER_POLL))  # 0 would not wait at all
        data = line.recv(size - len(found))
        if not data:
            raise ConnectionResetError("the connection was closed")
        found += data
    return found
