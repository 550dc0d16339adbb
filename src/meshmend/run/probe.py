"""Whether a host can be reached over the network that sums use: its agent listens on a port, the launcher connects.

A launch agent may reach a host over another network, for management. So an agent that answers its launcher does not
prove that mpirun, which runs on the launcher's host, can reach the daemons and couriers of that host.

Nothing is ever read from such a connection or sent over it, so whoever connects gains nothing; and the agent listens
only on the address that the launcher knows its host by.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from meshmend.base.clocks import PROBE_REROUTE, PROBE_SILENCE


class ProbeListener:
    """The port that an agent listens on; connections are accepted and closed at once."""

    def __init__(self, host: str) -> None:
        self._socket = _listen(host)
        self._socket.setblocking(False)
        self.port = int(self._socket.getsockname()[1])

    def answer(self) -> None:
        """Close the connections that have come in."""
        with contextlib.suppress(OSError):
            while True:
                self._socket.accept()[0].close()

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


def _listen(host: str) -> socket.socket:
    """Listen on the address of a host, as its name is known here.

    Where that is no address of this host (its name means another one here), loopback does: a connection that is refused
    shows as well that the host is there.
    """
    with contextlib.suppress(OSError):
        for family, *_, address in socket.getaddrinfo(host.rpartition("@")[2], 0, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError):
                return socket.create_server(address[:2], family=family)
    return socket.create_server(("127.0.0.1", 0))


class Probe:
    """One attempt to connect to a host, in a thread of its own."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.answer: bool | None = None
        """Whether the host can be reached; None while that is not known yet."""
        self._thread = threading.Thread(target=self._connect, args=(port,), name=f"probe of {host}", daemon=True)
        self._thread.start()

    def wait(self) -> bool:
        """Wait for the answer."""
        self._thread.join()
        return bool(self.answer)

    def _connect(self, port: int) -> None:
        name, began = self.host.rpartition("@")[2], time.monotonic()
        while self.answer is None:
            try:
                socket.create_connection((name, port), PROBE_SILENCE).close()
                self.answer = True
            except ConnectionError:  # refused, or closed at once: the host is there
                self.answer = True
            except OSError:  # silence, no route, or a name that only the launch agent knows
                if time.monotonic() - began > PROBE_REROUTE:
                    self.answer = False
                time.sleep(PROBE_REROUTE / 10)
