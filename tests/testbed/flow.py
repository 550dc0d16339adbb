"""A flow of bytes over TCP: `flow.py send TO PORT BYTES`, and `flow.py receive PORT`, which says how fast they came.

The receiver takes one flow and judges the speed from its first byte to its last.
"""

from __future__ import annotations

import socket
import sys
import time

PIECE = bytes(1 << 16)


def receive(port: int) -> None:
    with socket.create_server(("", port)) as server:
        print("ready", flush=True)
        line, (sender, _) = server.accept()
        with line:
            came, began = len(line.recv(len(PIECE))), time.monotonic()
            first = came
            while data := line.recv(len(PIECE)):
                came += len(data)
            ended = time.monotonic()
    print(sender, came, 8 * (came - first) / max(ended - began, 1e-6), began, ended, flush=True)


def send(to: str, port: int, nbytes: int) -> None:
    with socket.create_connection((to, port), 10) as line:
        line.settimeout(60)
        left = nbytes
        while left:
            line.sendall(PIECE[: min(left, len(PIECE))])
            left -= min(left, len(PIECE))


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(int(sys.argv[2]))
    else:
        send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
