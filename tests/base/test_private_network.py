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
SERVER = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
server.accept()
"""


def test_what_listens_in_it_is_reached_from_within_alone() -> None:
    own = private_network()
    if own is None:
        pytest.skip("this system lets this user have no network namespace")
    line = [sys.executable, "-c", SERVER]
    with subprocess.Popen(line, preexec_fn=own.enter, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), DEADLINE)
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), {DEADLINE})"
        subprocess.run([sys.executable, "-c", code], preexec_fn=own.enter, check=True, timeout=DEADLINE)
        assert server.wait(DEADLINE) == 0


def test_it_has_no_other_device_and_processes_in_it_are_found() -> None:
    own = private_network()
    if own is None:
        pytest.skip("this system lets this user have no network namespace")
    second = f"61.{os.getpid()}"
    line = ["sh", "-c", "cat /proc/net/dev; exec sleep 61.5 $0", second]
    with subprocess.Popen(line, preexec_fn=own.enter, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        wait_for(lambda: running("61.5", second, any_network=True) == [child.pid])
        assert running("61.5", second) == [] and not is_here(child.pid)
        child.kill()
        devices = [row.split(":")[0].strip() for row in child.stdout.read().splitlines()[2:]]
    assert "lo" in devices and not any(name.startswith(("eth", "en")) for name in devices)


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
