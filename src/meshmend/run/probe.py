"""Whether a host can be reached over the network that sums use: its agent listens on a port, the launcher connects.

A launch agent may reach a host over a separate management network. So an agent that answers its launcher does not
prove that mpirun, which runs on the launcher's host, can reach the daemons and couriers of that host.

Both sides prove that they know the run's secret (secret.py), and exchange nothing else:

    LAUNCHER                                 AGENT
                     ◄── a number ──         a new one for each connection
    ── another number, and a proof ──►       drops the connection if that is wrong
                     ◄── its own proof ──
"""

from __future__ import annotations

import socket
import threading
import time

from meshmend.base.clocks import PROBE_REROUTE, PROBE_SILENCE
from meshmend.base.proofs import NUMBER, SIZE, new_number, proof, proves
from meshmend.run.listener import Listener, receive
from meshmend.run.secret import AGENT, LAUNCHER


class Imposter(OSError):
    """Another process answered, which does not know the run's secret."""


class ProbeListener(Listener):
    """The port that an agent listens on."""

    def __init__(self, host: str) -> None:
        super().__init__(host, NUMBER + SIZE)

    def begin(self, secret: bytes) -> None:
        """Answer clients that know the secret, from now on."""

        def prove(number: bytes, said: bytes, _: str) -> bytes:
            numbers = number + said[:NUMBER]
            return proof(secret, AGENT, numbers) if proves(said[NUMBER:], secret, LAUNCHER, numbers) else b""

        self.serve(prove)


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
        numbers = receive(line, NUMBER, until) + new_number()
        line.sendall(numbers[NUMBER:] + proof(secret, LAUNCHER, numbers))
        if not proves(receive(line, SIZE, until), secret, AGENT, numbers):
            raise Imposter("the run's secret is not known there")
