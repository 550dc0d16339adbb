"""Probes of a host: its agent and the launcher know each other by the run's secret, and strangers disturb nobody."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from meshmend.base.proofs import NUMBER, SIZE, new_number, new_secret, proof, proves
from meshmend.run import probe
from meshmend.run.listener import MOST
from meshmend.run.probe import Probe, ProbeListener
from meshmend.run.secret import AGENT, LAUNCHER

SECRET = new_secret()
WAIT = 60.0


@pytest.fixture
def door() -> Iterator[ProbeListener]:
    made = ProbeListener("me@localhost")
    made.begin(SECRET)
    yield made
    made.close()


def call(door: ProbeListener) -> socket.socket:
    """A stranger's connection, and the number that comes with it."""
    return socket.create_connection((door.address, door.port), WAIT)


def ends(line: socket.socket) -> bytes:
    """What comes until the connection is closed."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while data := line.recv(4096):
            found += data
    return found


def test_whoever_probes_is_answered_again_and_again(door: ProbeListener) -> None:
    for _ in range(300):  # more than may wait at a port
        assert Probe("localhost", door.port, SECRET, door.address).wait()


def test_a_host_where_nobody_listens_any_more_is_there() -> None:
    with socket.create_server(("", 0)) as closed:
        port = closed.getsockname()[1]
    assert Probe("me@localhost", port, SECRET).wait()


def test_a_host_that_has_no_address_is_not_there() -> None:
    knock = Probe("no-such-host.invalid", 1, SECRET)
    assert knock.answer is None and not knock.wait() and knock.answer is False


def test_an_agent_that_waits_for_its_secret_answers_later() -> None:
    door = ProbeListener("127.0.0.1")
    knock = Probe("localhost", door.port, SECRET, door.address)
    door.begin(SECRET)
    assert knock.wait()
    door.close()


@pytest.mark.parametrize(("host", "where"), [("127.0.0.1", "127.0.0.1"), ("no-such-host.invalid", "127.0.0.1")])
def test_a_host_listens_only_where_its_launcher_looks_for_it(host: str, where: str) -> None:
    door = ProbeListener(host)
    assert door.address == where
    door.close()


def answers(port: socket.socket, what: bytes) -> None:
    """Play an agent that does not know the secret."""
    with contextlib.suppress(OSError):
        while True:
            line, _ = port.accept()
            with line, contextlib.suppress(OSError):
                line.sendall(what)
                ends(line)


@pytest.mark.parametrize("what", [b"", bytes(NUMBER), bytes(NUMBER + SIZE), os.urandom(4096)])
def test_somebody_else_at_the_port_is_not_taken_for_the_agent(what: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that says nothing; and one that has another run's secret."""
    monkeypatch.setattr(probe, "PROBE_SILENCE", 0.3)
    monkeypatch.setattr(probe, "PROBE_REROUTE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as port:
        threading.Thread(target=answers, args=[port, what], daemon=True).start()
        assert not Probe("127.0.0.1", port.getsockname()[1], SECRET).wait()
        port.shutdown(socket.SHUT_RDWR)


def test_a_proof_is_of_no_use_to_another_side_or_in_another_connection(door: ProbeListener) -> None:
    with call(door) as first:
        number = first.recv(NUMBER, socket.MSG_WAITALL)
        mine = new_number()
        said = mine + proof(SECRET, LAUNCHER, number + mine)
        first.sendall(said)
        answer = ends(first)
    assert proves(answer, SECRET, AGENT, number + mine)
    for replayed in (said, mine + answer, mine + proof(new_secret(), LAUNCHER, number + mine)):
        with call(door) as again:
            assert again.recv(NUMBER, socket.MSG_WAITALL) != number
            again.sendall(replayed)
            assert ends(again) == b""


@pytest.mark.parametrize("said", [b"", b"x", b"\n" * (NUMBER + SIZE), os.urandom(1 << 16)])
def test_strangers_hold_up_no_probe_and_take_little(door: ProbeListener, said: bytes) -> None:
    """More of them than an agent keeps; those that say nothing wait until others take their place."""
    with contextlib.ExitStack() as open_:
        for _ in range(2 * MOST):
            line = open_.enter_context(call(door))
            with contextlib.suppress(ConnectionError):
                line.sendall(said)
            assert len(door._callers) <= MOST
        assert all(len(one.said) <= NUMBER + SIZE for one in list(door._callers.values()))
        assert Probe("localhost", door.port, SECRET, door.address).wait()
        assert door._thread is not None and door._thread.is_alive()


def test_those_that_say_nothing_are_dropped_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PROBE_SILENCE", 0.1)
    door = ProbeListener("127.0.0.1")
    door.begin(SECRET)
    with call(door) as line:
        assert len(ends(line)) == NUMBER
    door.close()
