"""Whether a host can be reached over the network that sums use: its agent listens on a port, the launcher connects.

A launch agent may reach a host over a separate management network. So an agent that answers its launcher does not
prove that mpirun, which runs on the launcher's host, can reach the daemons and couriers of that host.

Both sides prove that they know the run's secret (secret.py), and exchange nothing else:

    LAUNCHER                                 AGENT
                     ◄── a number ──         a new one for each connection
    ── another number, and a proof ──►       drops the connection if that is wrong
                     ◄── its own proof ──

Anyone may connect to the port. An agent keeps few connections, each for a short time, and reads no more from one than
the length of a proof, in a separate thread: a client that does not know the secret blocks neither the agent nor other
probes.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field

from meshmend.base.clocks import PROBE_REROUTE, PROBE_SILENCE
from meshmend.run.secret import AGENT, LAUNCHER, NUMBER, SIZE, new_number, proof, proves

MOST = 64
"""How many connections are kept; a new one replaces the oldest."""


class Imposter(OSError):
    """Another process answered, which does not know the run's secret."""


@dataclass
class _Caller:
    """A connection that has proved nothing yet."""

    line: socket.socket
    number: bytes = field(default_factory=new_number)
    since: float = field(default_factory=time.monotonic)
    said: bytes = b""


class ProbeListener:
    """The port that an agent listens on."""

    def __init__(self, host: str) -> None:
        self._socket = _listen(host)
        self._socket.setblocking(False)
        self.address, self.port = self._socket.getsockname()[:2]
        self._callers: dict[int, _Caller] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def begin(self, secret: bytes) -> None:
        """Answer from now on, including clients that connected earlier and have waited."""
        self._thread = threading.Thread(target=self._serve, args=[secret], name="probes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        if self._thread is not None:
            self._thread.join()
        self._socket.close()

    def _serve(self, secret: bytes) -> None:
        with selectors.DefaultSelector() as events:
            events.register(self._socket, selectors.EVENT_READ)
            while not self._closed:
                for key, _ in events.select(PROBE_SILENCE if self._callers else None):
                    caller = self._callers.get(key.fd)
                    if caller is None and key.fileobj is self._socket:
                        self._accept(events)
                    elif caller is not None and self._hear(caller, secret):
                        self._drop(events, caller)
                late = time.monotonic() - PROBE_SILENCE
                for caller in [one for one in self._callers.values() if one.since < late or self._closed]:
                    self._drop(events, caller)

    def _accept(self, events: selectors.BaseSelector) -> None:
        try:
            line = self._socket.accept()[0]
        except OSError:  # the client is gone again; or there are too many open files, which may change
            time.sleep(0.01)
            return
        if len(self._callers) == MOST:
            self._drop(events, next(iter(self._callers.values())))
        caller = _Caller(line)
        self._callers[line.fileno()] = caller
        events.register(line, selectors.EVENT_READ)
        with contextlib.suppress(OSError):
            line.setblocking(False)
            line.send(caller.number)

    def _hear(self, caller: _Caller, secret: bytes) -> bool:
        """Read what has arrived, and answer a proof; return whether the connection is finished."""
        try:
            data = caller.line.recv(NUMBER + SIZE - len(caller.said))
        except BlockingIOError:
            return False
        except OSError:
            return True
        caller.said += data
        if data and len(caller.said) < NUMBER + SIZE:
            return False
        numbers = caller.number + caller.said[:NUMBER]
        if proves(caller.said[NUMBER:], secret, LAUNCHER, numbers):
            with contextlib.suppress(OSError):
                caller.line.send(proof(secret, AGENT, numbers))
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


class Probe:
    """One attempt to reach the agent of a host, in a separate thread."""

    def __init__(self, host: str, port: int, secret: bytes, address: str = "") -> None:
        self.host = host
        self.answer: bool | None = None
        """Whether the host can be reached; None while that is unknown."""
        where = address or host.rpartition("@")[2], port
        self._thread = threading.Thread(target=self._try, args=(where, secret), name=f"probe of {host}", daemon=True)
        self._thread.start()

    def wait(self) -> bool:
        """Wait for the answer."""
        self._thread.join()
        return bool(self.answer)

    def _try(self, where: tuple[str, int], secret: bytes) -> None:
        began = time.monotonic()
        while self.answer is None:
            try:
                _meet(where, secret)
                self.answer = True
            except ConnectionError:  # refused, or closed immediately: the host is reachable
                self.answer = True
            except OSError:  # silence, no route, another process, or a name that only the launch agent knows
                if time.monotonic() - began > PROBE_REROUTE:
                    self.answer = False
                time.sleep(PROBE_REROUTE / 10)


def _meet(where: tuple[str, int], secret: bytes) -> None:
    """Connect to an agent and have it prove that it belongs to this run."""
    until = time.monotonic() + PROBE_SILENCE
    with socket.create_connection(where, PROBE_SILENCE) as line:
        numbers = _receive(line, NUMBER, until) + new_number()
        line.sendall(numbers[NUMBER:] + proof(secret, LAUNCHER, numbers))
        if not proves(_receive(line, SIZE, until), secret, AGENT, numbers):
            raise Imposter("the run's secret is not known there")


def _receive(line: socket.socket, size: int, until: float) -> bytes:
    """Receive this many bytes, before a deadline."""
    found = b""
    while len(found) < size:
        line.settimeout(max(until - time.monotonic(), 0.001))
        data = line.recv(size - len(found))
        if not data:
            raise ConnectionResetError("the connection was closed")
        found += data
    return found
