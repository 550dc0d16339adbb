"""A network of one's own: nothing in it but loopback, and nobody else's way in."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from meshmend.base.private_network import private_network
from meshmend.base.processes import is_here, running
from tests.processes import DEADLINE, wait_for

NOBODY = 65534
SET_DUMPABLE = 4
ENTER = "from meshmend.base.private_network import private_network\nprivate_network().enter()\n"
"""In a child of its own: a test's process may have threads of JAX, and must not be forked."""
SERVER = """
import socket
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname())
print(server.getsockname()[1], open("/proc/net/dev").read().count("eth"), flush=True)
input()
"""


def test_what_listens_in_it_is_reached_from_within_alone() -> None:
    if private_network() is None:
        pytest.skip("this system lets this user have no network namespace")
    line = [sys.executable, "-c", ENTER + SERVER]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port, others = map(int, server.stdout.readline().split())
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), DEADLINE)
        assert others == 0
        server.kill()


def test_processes_in_it_are_found() -> None:
    if private_network() is None:
        pytest.skip("this system lets this user have no network namespace")
    second = f"61.{os.getpid()}"
    code = f"{ENTER}import os; os.execvp('sleep', ['sleep', '61.5', {second!r}])"
    with subprocess.Popen([sys.executable, "-c", code]) as child:
        wait_for(lambda: running("61.5", second, any_network=True) == [child.pid])
        assert running("61.5", second) == [] and not is_here(child.pid)
        child.kill()


def test_it_needs_no_privileges() -> None:
    """Where the system lets everybody have one."""
    if os.geteuid():
        pytest.skip("needs root, to act as another user")
    code = f"""
import ctypes, os
from meshmend.base import private_network
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
ctypes.CDLL(None).prctl({SET_DUMPABLE}, 1)  # as after an exec: its files in /proc are its own
try:
    private_network._make()
except OSError as error:
    print("no", error)
else:
    print(os.getuid(), open("/proc/net/dev").read().count("lo:"), os.readlink("/proc/self/ns/net"))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=DEADLINE)
    if said.stdout.startswith("no"):
        pytest.skip(f"this system does not: {said.stdout}")
    user, loopback, space = said.stdout.split()
    assert (user, loopback) == (str(NOBODY), "1") and space != os.readlink("/proc/self/ns/net")
