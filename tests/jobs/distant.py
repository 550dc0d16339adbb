"""A very small ssh for tests: `distant.py serve` on a host, `distant.py HOST COMMAND` as the launch agent.

What a launcher says to an agent then really crosses the network between the hosts of a test, and is lost with it. As
with ssh, a command outlives a cut line: it sees the end of its input, or nothing at all.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

PORT = 2222
PATIENCE = 5.0
"""Seconds for a connection to come about; ssh has its ConnectTimeout for this."""


def serve() -> None:
    with socket.create_server(("", PORT)) as server:
        while True:
            line, _ = server.accept()
            threading.Thread(target=answer, args=[line], daemon=True).start()


def answer(line: socket.socket) -> None:
    with line, line.makefile("rb", buffering=0) as begin:
        command = bytes(begin.readline()).decode()
        child = subprocess.Popen(["sh", "-c", command], stdin=line, stdout=line, cwd="/", start_new_session=True)
    child.wait()


def call(host: str, command: str) -> None:
    try:
        line = socket.create_connection((host, PORT), PATIENCE)
    except OSError as error:
        sys.exit(f"distant: {host}: {error}")
    line.settimeout(None)
    line.sendall(command.encode() + b"\n")

    def speak() -> None:
        while data := os.read(0, 65536):
            line.sendall(data)
        line.shutdown(socket.SHUT_WR)

    threading.Thread(target=speak, daemon=True).start()
    while data := line.recv(65536):
        while data:
            data = data[os.write(1, data) :]


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        call(sys.argv[1], " ".join(sys.argv[2:]))
