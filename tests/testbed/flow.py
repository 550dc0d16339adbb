"""A flow of bytes over TCP: `flow.py send TO PORT BYTES`, and `flow.py receive PORT`, which says how fast they came.

The receiver takes one flow. Time runs from just before the first byte is sent (by the sender's clock, which is also the
receiver's) until the last byte is received: a busy machine can make a flow look slower, never faster.
"""

from __future__ import annotations

import socket
import struct
import sys
import time

PIECE = bytes(1 << 16)


def receive(port: int) -> None:
    with socket.create_server(("", port)) as server:
        print("ready", flush=True)
        line, (sender, _) = server.accept()
        with line:
            (began,) = struct.unpack("d", line.recv(8, socket.MSG_WAITALL))
            came = 0
            while data := line.recv(len(PIECE)):
                came += len(data)
            ended = time.monotonic()
    print(sender, came, 8 * came / (ended - began), began, ended, flush=True)


def send(to: str, port: int, nbytes: int) -> None:
    with socket.create_connection((to, port), 60) as line:
        line.settimeout(60)
        line.sendall(struct.pack("d", time.monotonic()))
        left = nbytes
        while left:
            line.sendall(PIECE[: min(left, len(PIECE))])
            left -= min(left, len(PIECE))


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(int(sys.argv[2]))
    else:
        send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
