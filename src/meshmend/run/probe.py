"""Whether a host can be reached over the network that sums use: its agent listens on a port, the launcher connects.

A launch agent may reach a host over another network, for management. So an agent that answers its launcher does not
prove that mpirun, which runs on the launcher's host, can reach the daemons and couriers of that host.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from meshmend.base.clocks import PROBE_REROUTE, PROBE_SILENCE


class ProbeListener:
    """The port that an agent listens on; connections are accepted and closed at once."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("", 0))
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
