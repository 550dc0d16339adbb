"""What a process listens on is kept to loopback or to a network, from within or by its parent."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from meshmend.base.sockets import LOCAL, address_towards, common_network, keep_to

LISTEN = "import socket\nserver = socket.create_server(('', 0))\nprint(server.getsockname()[1], flush=True)\ninput()"


@pytest.mark.parametrize(
    ("addresses", "network"),
    [
        (["10.77.0.1", "10.77.0.2"], "10.77.0.0/30"),
        (["10.77.0.1", "10.77.3.9", "10.77.0.1"], "10.77.0.0/22"),
        (["10.77.0.1"], "10.77.0.1/32"),
        (["10.0.0.1", "192.168.0.1"], ""),
        (["10.77.0.1", ""], ""),
        (["10.77.0.1", "127.0.1.1"], ""),
        (["10.77.0.1", "0.0.0.0"], ""),
        (["fd00::1", "fd00::2"], ""),
        ([], ""),
    ],
)
def test_the_network_that_addresses_have_in_common(addresses: list[str], network: str) -> None:
    assert common_network(addresses) == network


@pytest.mark.parametrize(("other", "ours"), [("127.0.0.1", "127.0.0.1"), ("", ""), ("not an address", ""), ("::1", "")])
def test_the_address_that_others_see(other: str, ours: str) -> None:
    found = address_towards(other)
    assert found == ours or not other


@pytest.mark.parametrize("reach", [LOCAL, "10.77.0.0/30"])
def test_a_host_always_reaches_itself_over_loopback(reach: str) -> None:
    with (
        subprocess.Popen([sys.executable, "-c", LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child,
        socket.create_server(("", 0)) as mine,
    ):
        assert child.stdin is not None and child.stdout is not None
        theirs = int(child.stdout.readline())
        for process in (child.pid, os.getpid()):
            keep_to(process, reach)
        for port in (theirs, mine.getsockname()[1]):
            socket.create_connection(("127.0.0.1", port), 60).close()
        child.stdin.close()


def test_what_was_sent_to_an_address_outside_of_the_network_is_dropped() -> None:
    """Loopback is the only device that a test can count on, so there a filter is tried on its words alone."""
    if not (here := address_towards("192.0.2.1")) or here.startswith("127."):
        pytest.skip("this host has no address on a network")
    with socket.create_server(("", 0)) as server:
        place = here, server.getsockname()[1]
        socket.create_connection(place, 60).close()
        keep_to(os.getpid(), "203.0.113.0/24")
        with pytest.raises(TimeoutError):
            socket.create_connection(place, 0.5)
        keep_to(os.getpid(), f"{here}/32")
        socket.create_connection(place, 60).close()
