"""Where a host announces itself to a live run: a port of the launcher, and a note that says how to find it.

The note is in the run's folder, and only the run's user can read it (0600): it has the address, and the secret of the
door, which each launcher makes anew. Whoever announces a host proves that it knows this secret; the launcher's answer
is proved in the same way, and says whether the host may join. The launcher itself then starts an agent there with the
launch agent, as on any other host: through the door comes a name and a number, and nothing else.

    HOST                                                    LAUNCHER
                                      ◄── a number ──       a new one for each connection
    ── another number, a proof, "c:4" ──►                   drops the connection if the proof is wrong, and says so
                                      ◄── its own proof, and why not, if it may not ──
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from meshmend.base.clocks import PROBE_SILENCE
from meshmend.base.proofs import NUMBER, SIZE, new_number, new_secret, proof, proves
from meshmend.base.schema import checked, loads
from meshmend.errors import FormatError, JobError
from meshmend.run.clusters.hosts import Host, parse_hosts
from meshmend.run.listener import Listener, receive
from meshmend.run.secret import LAUNCHER, NEW_HOST

NOTE = "door.json"
NAME, REASON = 256, 512
"""Bytes of a host, and of the reason why it may not join."""
STRANGERS = 16
"""Addresses of refused clients that are remembered: each is reported once."""

Refusal = Callable[[Host, Collection[Host]], str]
"""Says why a host may not join after others that wait at the door; empty: it may."""


@dataclass(frozen=True)
class DoorAddress:
    """How to find the door of a run."""

    address: str
    port: int
    secret: str


class Door:
    """The door of one launcher, at an address of this host."""

    def __init__(self, folder: Path, address: str, refusal: Refusal) -> None:
        self._path, self._refusal, self._secret = folder / NOTE, refusal, new_secret()
        self._listener = Listener(address, NUMBER + SIZE + NAME)
        self.hosts: deque[Host] = deque()
        """Hosts that announced themselves and may join."""
        self.strangers: deque[str] = deque()
        """Addresses of clients that do not know the secret, to be reported."""
        self._known: set[str] = set()
        note = DoorAddress(self._listener.address, self._listener.port, self._secret.hex())
        try:
            _write(self._path, json.dumps(asdict(note)))
        except OSError:
            self._listener.close()
            raise
        self._listener.serve(self._answer)

    def close(self) -> None:
        """Let nobody in any more."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        self._listener.close()

    def _answer(self, number: bytes, said: bytes, address: str) -> bytes:
        numbers, name = number + said[:NUMBER], said[NUMBER + SIZE :]
        if not proves(said[NUMBER : NUMBER + SIZE], self._secret, NEW_HOST, numbers + name):
            if address not in self._known and len(self._known) < STRANGERS:
                self._known.add(address)
                self.strangers.append(address)
            return b""
        try:
            (host,) = parse_hosts(_unpad(name))
            reason = self._refusal(host, tuple(self.hosts))
        except (JobError, ValueError) as error:
            reason = str(error)
        else:
            if not reason:
                self.hosts.append(host)
        answer = _pad(reason, REASON)
        return proof(self._secret, LAUNCHER, numbers + answer) + answer


def announce(folder: Path, host: Host) -> str | None:
    """Announce a host to the run in this folder; return why it may not join, empty if it may.

    None if no launcher of the run answers: it has ended, or was killed and another program has its port.
    """
    # A launcher that ends drops connections too: asked again, it does not answer.
    for _ in range(2):
        note = _read(folder)
        if note is None:
            return None
        try:
            return _ask(note, host)
        except (ConnectionResetError, BrokenPipeError):
            continue
        except OSError:
            return None
    return f"its launcher does not know the secret in {folder / NOTE}"


def address(folder: Path) -> str:
    """Where the door of the run in this folder is; empty if it has none."""
    note = _read(folder)
    return "" if note is None else f"{note.address}:{note.port}"


def _ask(note: DoorAddress, host: Host) -> str | None:
    """What the door says; raises where it cannot be reached, or drops the connection."""
    secret, until = bytes.fromhex(note.secret), time.monotonic() + PROBE_SILENCE
    with socket.create_connection((note.address, note.port), PROBE_SILENCE) as line:
        numbers = receive(line, NUMBER, until) + new_number()
        name = _pad(f"{host.name}:{host.slots}", NAME)
        line.sendall(numbers[NUMBER:] + proof(secret, NEW_HOST, numbers + name) + name)
        said = receive(line, SIZE + REASON, until)
    known = proves(said[:SIZE], secret, LAUNCHER, numbers + said[SIZE:])
    return _unpad(said[SIZE:]) if known else None


def _read(folder: Path) -> DoorAddress | None:
    try:
        note = checked(DoorAddress, loads((folder / NOTE).read_bytes()))
        return note if len(bytes.fromhex(note.secret)) == SIZE else None
    except (OSError, FormatError, ValueError):
        return None


def _write(path: Path, text: str) -> None:
    """Write a file that only this user can read, in place of an older one."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    os.replace(new, path)


def _pad(text: str, size: int) -> bytes:
    data = text.encode()[:size]
    return data + bytes(size - len(data))


def _unpad(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")
