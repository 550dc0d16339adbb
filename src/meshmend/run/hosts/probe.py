"""Whether a host is there on the network that sums take: its agent listens on a port, and the launcher knocks.

Launch agents may come to a host by another network, for management. So an agent that answers its launcher does not
show that mpirun, beside the launcher, can reach the daemons and couriers of that host.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

SILENCE = 5.0
"""Seconds until a host that is silent counts as away: where links are busy, packets wait."""
REROUTE = 1.0
"""Seconds until one that no router knows a way to does: they may be looking for another way."""


class ProbeListener:
    """Where an agent can be knocked at; whoever does is let go at once."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("", 0))
        self._socket.setblocking(False)
        self.port = int(self._socket.getsockname()[1])

    def answer(self) -> None:
        """Let go those that have knocked."""
        with contextlib.suppress(OSError):
            while True:
                self._socket.accept()[0].close()

    def close(self) -> None:
        """Nobody is there any more."""
        self._socket.close()


class Probe:
    """One call at a host's door, made beside everything else."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.answer: bool | None = None
        """Whether the host is there; None while that is not known yet."""
        self._thread = threading.Thread(target=self._call, args=(port,), name=f"knock at {host}", daemon=True)
        self._thread.start()

    def wait(self) -> bool:
        """Whether it is there, in the end."""
        self._thread.join()
        return bool(self.answer)

    def _call(self, port: int) -> None:
        name, began = self.host.rpartition("@")[2], time.monotonic()
        while self.answer is None:
            try:
                socket.create_connection((name, port), SILENCE).close()
                self.answer = True
            except ConnectionError:  # refused, or let go at once: somebody is there
                self.answer = True
            except OSError:  # silence, no way, or a name that only the launch agent knows
                if time.monotonic() - began > REROUTE:
                    self.answer = False
                time.sleep(REROUTE / 10)
