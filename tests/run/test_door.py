"""The door of a run: whoever knows its secret may announce a host, and nobody else is heard."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshmend.base.proofs import NUMBER, SIZE, new_number, proof
from meshmend.errors import JobError
from meshmend.run.clusters.hosts import HERE, Host
from meshmend.run.door import NAME, NOTE, Door, announce
from meshmend.run.entry import attach
from meshmend.run.hosts.newcomers import NewHosts, own_address, refusal
from meshmend.run.hosts.pool import Pool
from meshmend.run.hosts.remote import Remote
from meshmend.run.news import News
from meshmend.run.secret import NEW_HOST
from meshmend.run.spec import RunSpec
from tests.processes import DEADLINE, wait_for

HOST = Host("c", 4)
SPEC = RunSpec(run="mine", script=["train.py"], workers=4, hosts=[Host("a", 2), Host("b", 2)])


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    made = Door(tmp_path, "127.0.0.1", lambda host, _: "there is no room" if host.slots > 4 else "")
    yield made
    made.close()


def test_a_host_that_knows_the_secret_is_let_in(door: Door, tmp_path: Path) -> None:
    assert announce(tmp_path, HOST) == ""
    assert announce(tmp_path, Host("d", 5)) == "there is no room"
    assert [*door.hosts] == [HOST] and not door.strangers


@pytest.mark.usefixtures("door")
def test_only_the_user_can_read_the_secret_and_each_launcher_has_another(tmp_path: Path) -> None:
    first = (tmp_path / NOTE).read_text()
    assert stat.S_IMODE((tmp_path / NOTE).stat().st_mode) == 0o600
    other = Door(tmp_path, "127.0.0.1", lambda *_: "")
    assert json.loads((tmp_path / NOTE).read_text())["secret"] != json.loads(first)["secret"]
    other.close()
    assert not (tmp_path / NOTE).exists() and announce(tmp_path, HOST) is None


def test_a_wrong_secret_is_refused_and_reported_once(door: Door, tmp_path: Path) -> None:
    note = json.loads((tmp_path / NOTE).read_text())
    (tmp_path / NOTE).write_text(json.dumps({**note, "secret": "00" * SIZE}))
    for _ in range(3):
        assert "does not know the secret" in (announce(tmp_path, HOST) or "")
    assert not door.hosts and [*door.strangers] == ["127.0.0.1"]


def test_what_was_said_once_cannot_be_said_again_by_others(door: Door, tmp_path: Path) -> None:
    """A message that was seen on the network is of no use in another connection, nor with another name."""
    note = json.loads((tmp_path / NOTE).read_text())
    name = b"c:4".ljust(NAME, b"\0")

    def call(make: bytes | None) -> tuple[bytes, bytes]:
        with socket.create_connection((note["address"], note["port"]), 60) as line:
            numbers = line.recv(NUMBER) + new_number()
            proved = proof(bytes.fromhex(note["secret"]), NEW_HOST, numbers + name)
            message = make or numbers[NUMBER:] + proved + name
            line.sendall(message)
            return message, line.recv(4096)

    message, answer = call(None)
    assert len(answer) > SIZE
    assert call(message)[1] == b""
    assert call(message[: NUMBER + SIZE] + b"evil:9".ljust(NAME, b"\0"))[1] == b""
    assert [*door.hosts] == [HOST]


def test_an_impostor_at_the_door_is_not_believed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        note = {"address": "127.0.0.1", "port": server.getsockname()[1], "secret": "11" * SIZE}
        (tmp_path / NOTE).write_text(json.dumps(note))

        def pretend() -> None:
            line, _ = server.accept()
            with line, contextlib.suppress(OSError):  # who announces a host may have given up
                line.sendall(new_number() + bytes(SIZE + 512))
                while line.recv(4096):
                    pass

        impostor = threading.Thread(target=pretend)
        impostor.start()
        assert announce(tmp_path, HOST) is None
        impostor.join()


@pytest.mark.parametrize("greets", [False, True])
def test_a_launcher_that_ends_meanwhile_is_one_that_does_not_answer(tmp_path: Path, greets: bool) -> None:
    """It knows its secret, but drops the connection."""
    server = socket.create_server(("127.0.0.1", 0))
    note = {"address": "127.0.0.1", "port": server.getsockname()[1], "secret": "11" * SIZE}
    (tmp_path / NOTE).write_text(json.dumps(note))

    def end() -> None:
        line, _ = server.accept()
        with line:
            if greets:
                line.sendall(new_number())
                line.recv(4096)
            server.close()  # before the line, as the kernel does when a process is killed: nobody else is let in

    launcher = threading.Thread(target=end)
    launcher.start()
    assert announce(tmp_path, HOST) is None
    launcher.join()


def test_the_door_is_where_other_hosts_can_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the launcher's own name is on loopback, as on Debian."""
    here = socket.gethostname()
    names = {here: "127.0.1.1", "b": "10.1.0.2"}
    monkeypatch.setattr("meshmend.run.hosts.newcomers.address_of", names.__getitem__)
    monkeypatch.setattr("meshmend.run.hosts.newcomers.address_towards", {"10.1.0.2": "10.1.0.1"}.__getitem__)
    own, other = Host(here, 2), Host("b", 2)
    assert own_address(replace(SPEC, hosts=[own, other])) == "10.1.0.1"
    assert own_address(replace(SPEC, hosts=[own], added=[other])) == "10.1.0.1"
    assert own_address(replace(SPEC, hosts=[own])) == "127.0.0.1"
    names[here] = "10.1.0.9"
    assert own_address(replace(SPEC, hosts=[other, own])) == "10.1.0.9"


def test_a_launcher_that_cannot_be_asked_is_not_to_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is alive, on this host or on another one, and its door is somewhere else."""
    monkeypatch.setenv("MESHMEND_RUNS", str(tmp_path))
    monkeypatch.setattr("meshmend.run.entry.check", lambda _: None)
    run = f"test-door-{os.getpid()}"
    spec = replace(SPEC, run=run)
    spec.save()
    with socket.create_server(("127.0.0.1", 0)) as free:
        note = {"address": "127.0.0.1", "port": free.getsockname()[1], "secret": "11" * SIZE}
    (spec.folder / NOTE).write_text(json.dumps(note))
    other = "import sys; from meshmend.job.shm import manage\nwith manage(sys.argv[1]): print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", other, run], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None and launcher.stdout.readline() == "\n"
        with pytest.raises(JobError, match=f"its door at 127.0.0.1:{note['port']} cannot be reached") as error:
            attach(spec, [HOST])
        assert "stop" not in str(error.value)
        (spec.folder / NOTE).unlink()
        with pytest.raises(JobError, match="does not accept new hosts"):
            attach(spec, [HOST])
        with pytest.raises(JobError, match="stop that launcher first"):
            attach(spec)
        launcher.communicate("\n", timeout=DEADLINE)


@given(st.binary(max_size=80))
def test_any_note_is_a_note_or_none(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("door")
    (folder / NOTE).write_bytes(data)
    assert announce(folder, HOST) is None


@pytest.mark.usefixtures("door")
def test_strangers_that_say_nothing_or_anything_keep_nobody_out(tmp_path: Path) -> None:
    note = json.loads((tmp_path / NOTE).read_text())
    lines = [socket.create_connection((note["address"], note["port"]), 60) for _ in range(100)]
    for number, line in enumerate(lines[50:]):
        line.send(bytes(number))
    wait_for(lambda: announce(tmp_path, HOST) == "")
    for line in lines:
        line.close()


@pytest.mark.parametrize(
    ("spec", "host", "words"),
    [
        (SPEC, HOST, ""),
        (SPEC, Host("b", 1), "already part"),
        (replace(SPEC, added=[HOST]), HOST, "already part"),
        (SPEC, Host("c", 9), "room for 8 more"),
        (replace(SPEC, added=[HOST]), Host("d", 5), "room for 4 more"),
        (replace(SPEC, hosts=()), HOST, "--resume mine --hosts"),
        (replace(SPEC, hosts=[Host(HERE, 4)]), HOST, "cannot reach"),
        (replace(SPEC, mesh="2x2"), HOST, "--mesh 2x2"),
        (SPEC, Host(socket.gethostname(), 1), "launcher's own host"),
    ],
)
def test_which_hosts_can_join(spec: RunSpec, host: Host, words: str) -> None:
    found = refusal(spec, host)
    assert words in found and bool(words) == bool(found)


def test_a_host_that_is_being_added_is_not_added_again() -> None:
    """Whatever number of workers is given the second time; and its workers have their room already."""
    assert "c is being added to it already, with room for 4" in refusal(SPEC, Host("c", 2), [HOST])
    assert "room for 4 more" in refusal(SPEC, Host("d", 5), [HOST])
    assert not refusal(SPEC, Host("d", 4), [HOST])


class Reported(Remote):
    """An agent on another host that has reported."""

    def __init__(self, host: str) -> None:
        self.host, self.ready, self.closed = host, True, False

    def close(self) -> None:
        self.closed = True


def test_a_host_announced_twice_keeps_its_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two numbers of workers, before its agent has reported: the first counts, and the user is told so."""
    monkeypatch.setenv("MESHMEND_RUNS", str(tmp_path))
    monkeypatch.setattr(Pool, "_called", lambda _, host: Reported(host))
    said: list[News] = []
    SPEC.save()
    pool = Pool(SPEC)
    hosts = NewHosts(pool, said.append)
    hosts.open()
    try:
        assert announce(SPEC.folder, HOST) == ""
        assert "being added" in (announce(SPEC.folder, Host("c", 2)) or "")  # before it was invited
        pool.invite(HOST)
        pool.invite(Host("c", 2))
        assert hosts.look() == (("c", 4),)
        assert "already part" in (announce(SPEC.folder, Host("c", 2)) or "")
        assert hosts.look() == () and not said
        assert pool.has("c") and pool.spec.added == [HOST]
    finally:
        hosts.close()
