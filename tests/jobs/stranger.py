"""Somebody on the network who knows nothing of a run: `stranger.py ADDRESS:PORT …` connects, and says silly things.

Prints the places that accepted a connection. Connections stay open until its input ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

GARBAGE = [b"", b"\0" * 4096, b"\xff" * 4096, b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 16]
PATIENCE = 1.0
"""Seconds for a connection to come about; over the wires of a test it takes a thousandth of one."""
KEPT: list[socket.socket] = []


def meets(place: str) -> bool:
    address, _, port = place.rpartition(":")
    try:
        lines = [socket.create_connection((address, int(port)), PATIENCE) for _ in GARBAGE]
    except OSError:
        return False
    KEPT.extend(lines)
    for line, said in zip(lines, GARBAGE, strict=True):
        with contextlib.suppress(ConnectionError):  # it was dropped
            line.sendall(said)
    return True


if __name__ == "__main__":
    with ThreadPoolExecutor(len(sys.argv)) as pool:
        met = list(pool.map(meets, sys.argv[1:]))
    print(*(place for place, found in zip(sys.argv[1:], met, strict=True) if found), flush=True)
    os.read(0, 1)
