"""Knocking at a host's door."""

from __future__ import annotations

import socket

import pytest

from meshmend.run.probe import Probe, ProbeListener


def test_whoever_knocks_is_answered_again_and_again() -> None:
    door = ProbeListener("me@localhost")
    for _ in range(300):  # more than may wait at a door
        assert Probe("localhost", door.port).wait()
        door.answer()
    door.close()


def test_a_host_where_nobody_listens_any_more_is_there() -> None:
    with socket.create_server(("", 0)) as closed:
        port = closed.getsockname()[1]
    assert Probe("me@localhost", port).wait()


def test_a_host_that_has_no_address_is_not_there() -> None:
    knock = Probe("no-such-host.invalid", 1)
    assert knock.answer is None and not knock.wait() and knock.answer is False


@pytest.mark.parametrize(("host", "where"), [("127.0.0.1", "127.0.0.1"), ("no-such-host.invalid", "127.0.0.1")])
def test_a_host_listens_only_where_its_launcher_looks_for_it(host: str, where: str) -> None:
    door = ProbeListener(host)
    assert door._socket.getsockname()[0] == where
    door.close()
