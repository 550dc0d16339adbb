"""Rows of other hosts: what is asked and answered, who may ask, and whom a worker turns to when somebody is silent."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshmend as mm
from meshmend.base.env import Settings
from meshmend.base.proofs import NUMBER
from meshmend.job.embeddings import holder as holder_module
from meshmend.job.embeddings import others as others_module
from meshmend.job.embeddings import spreading
from meshmend.job.embeddings.contacts import ASKS, HOLDS, Contact, Contacts
from meshmend.job.embeddings.holder import TableHolder
from meshmend.job.embeddings.others import Found, SeveralHosts, Standing
from meshmend.job.embeddings.placement import Placement
from meshmend.job.embeddings.port import STRANGERS, RowsPort, connect
from meshmend.job.embeddings.requests import (
    EVERY,
    Gone,
    Wanted,
    answer,
    answered,
    asked,
    portions,
    receiver,
    request,
)  # fmt: skip
from meshmend.job.embeddings.shape import Floats, Ids, Shape
from meshmend.job.embeddings.shelf import BUSY, Shelf
from meshmend.telemetry import FORMAT

SHAPE = Shape((50, 7, 300), 3, memory=1, seed=5)
SIZES = np.diff(SHAPE.bounds)
WIDTH = SHAPE.width + SHAPE.memory
HOME, AWAY = "127.0.0.1", "127.0.0.2"


def shelf(version: int, *slices: int) -> Shelf:
    made = Shelf(WIDTH)
    for number in slices:
        made.put(number, SHAPE.first(np.arange(SHAPE.bounds[number], SHAPE.bounds[number + 1])), version)
    return made


class Nobody:
    """Of this host."""

    def read(self, rank: int, version: int, wanted: Wanted) -> Found:
        del rank, version, wanted
        return {}, Standing.GONE

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def port() -> Iterator[RowsPort]:
    """Rank 1, on another address, before step 4, with slices 2 and 5."""
    before = set(threading.enumerate())
    made = RowsPort(AWAY, shelf(4, 2, 5), lambda: 4, SIZES)
    yield made
    made.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive(), "a port that is closed leaves no thread behind"


@contextmanager
def reader(contact: Contact) -> Iterator[SeveralHosts]:
    contacts = Contacts(0, 2, Contact(HOME, 1), {1: contact})
    made = SeveralHosts(contacts, Nobody(), SIZES, WIDTH, lambda: None)
    yield made
    made.close()


def asked_of(contact: Contact) -> Found:
    """What a worker gets that asks there once."""
    with reader(contact) as far:
        return far.read(1, 4, {5: EVERY})


def of(bytes_: bytes) -> Callable[[int], bytes]:
    """What gives the next of these bytes."""
    left = bytearray(bytes_)

    def receive(size: int) -> bytes:
        if size > len(left):
            raise Gone("there is no more")
        found = bytes(left[:size])
        del left[:size]
        return found

    return receive


places = st.one_of(st.just(EVERY), st.lists(st.integers(0, 15), unique=True).map(lambda some: np.array(some, np.int64)))


@settings(max_examples=60, deadline=None)
@given(wanted=st.dictionaries(st.integers(0, len(SIZES) - 1), places), here=st.sets(st.integers(0, len(SIZES) - 1)))
def test_what_is_answered_is_what_was_asked_for(wanted: dict[int, Ids | slice], here: set[int]) -> None:
    copies = shelf(3, *here)
    version, heard = asked(of(request(3, wanted)), SIZES)
    assert version == 3 and heard.keys() == wanted.keys()
    theirs, found = answered(of(answer(copies, 3, heard, lambda: 3)), wanted, SIZES, WIDTH)
    assert theirs == 3 and found.keys() == wanted.keys() & here
    for number, rows in found.items():
        assert rows.tobytes() == copies.copies[number].rows[wanted[number]].tobytes()
    later, none = answered(of(answer(copies, 4, heard, lambda: 3)), wanted, SIZES, WIDTH)
    assert later == 3 and not none, "rows of another step are not given"


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_damaged_request_is_refused_or_is_another_one(data: st.DataObject) -> None:
    said = bytearray(request(3, {2: np.arange(3), 4: EVERY}))
    said[data.draw(st.integers(0, len(said) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        _, heard = asked(of(bytes(said)), SIZES)
    except Gone:
        return
    answer(shelf(3, 2, 4), 3, heard, lambda: 3)


def test_large_questions_are_asked_in_portions() -> None:
    wanted = {number: np.zeros(400_000, np.int64) for number in range(6)}
    parts = list(portions(wanted))
    assert [[*part] for part in parts] == [[0, 1], [2, 3], [4, 5]]


def test_a_contact_travels_as_numbers_of_16_bits() -> None:
    columns = np.zeros((3, len(Contact(AWAY, 1).pieces())), np.int64)
    known = {0: Contact(HOME, 40_000), 2: Contact(AWAY, 65_535)}
    for rank, contact in known.items():
        columns[rank] = contact.pieces()
    assert columns.max() < 1 << 16
    contacts = Contacts(0, 3, known[0])
    contacts.heard(columns)
    newcomer = Contacts(1, 3, Contact(HOME, 7))
    newcomer.adopt(contacts.facts())
    assert contacts.known == newcomer.known == known
    assert "key" not in repr(contacts), "a key is in no message"


def test_rows_of_another_host_are_those_that_it_holds(port: RowsPort) -> None:
    first = SHAPE.first(np.arange(SHAPE.bounds[5], SHAPE.bounds[6]))
    with reader(port.contact) as far:
        for _ in range(2):  # over one connection
            found, standing = far.read(1, 4, {5: np.array([3, 1]), 6: EVERY})
            assert found.keys() == {5} and found[5].tobytes() == first[[3, 1]].tobytes()
            assert standing is Standing.DONE
        assert far.read(1, 5, {5: EVERY}) == ({}, Standing.BEHIND), "it has not made the last update"
        assert far.read(0, 4, {5: EVERY}) == ({}, Standing.GONE), "who has told no contact took no part in the last sum"
        port.close()
        assert far.read(1, 4, {5: EVERY}) == ({}, Standing.GONE)


def test_who_does_not_know_the_key_reads_nothing(port: RowsPort) -> None:
    stranger = replace(port.contact, key=bytes(16))
    assert asked_of(stranger) == ({}, Standing.GONE)
    with socket.create_connection((AWAY, port.contact.port)) as line:
        number = line.recv(NUMBER, socket.MSG_WAITALL)
        line.sendall(number + port.contact.proof(HOLDS, number + number))  # the proof of the other side
        assert line.recv(1) == b""
    assert len(asked_of(port.contact)[0]) == 1


def test_a_port_that_does_not_know_the_key_is_not_believed() -> None:
    with socket.create_server((AWAY, 0)) as server:
        contact = Contact(AWAY, server.getsockname()[1])

        def lie(line: socket.socket) -> None:
            line.sendall(bytes(NUMBER))
            said = line.recv(NUMBER + 32, socket.MSG_WAITALL)
            line.sendall(contact.proof(ASKS, bytes(NUMBER) + said[:NUMBER]))
            line.close()

        thread = threading.Thread(target=lambda: lie(server.accept()[0]))
        thread.start()
        with pytest.raises(ConnectionError, match="another process"):
            connect(contact)
        thread.join()


def test_strangers_keep_nobody_out(port: RowsPort) -> None:
    lines = [socket.create_connection((AWAY, port.contact.port)) for _ in range(STRANGERS + 9)]
    assert len(asked_of(port.contact)[0]) == 1
    for line in lines:
        line.close()


def test_nonsense_ends_its_connection_alone(port: RowsPort) -> None:
    with connect(port.contact) as line:
        line.sendall(request(4, {len(SIZES): EVERY}))
        line.settimeout(None)
        assert line.recv(1) == b""
    assert len(asked_of(port.contact)[0]) == 1


def test_who_is_late_is_not_waited_for_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshmend.job.embeddings.port.ROWS_ANSWER", 0.05)
    with socket.create_server((AWAY, 0)) as server, reader(Contact(AWAY, server.getsockname()[1])) as far:
        for _ in range(2):
            assert far.read(1, 4, {5: EVERY}) == ({}, Standing.LATE)
        server.setblocking(False)
        server.accept()[0].close()
        with pytest.raises(BlockingIOError):
            server.accept()
        monkeypatch.setattr(others_module, "ROWS_ANSWER", 0.0)
        far._late.clear()
        far.read(1, 4, {5: EVERY})
        server.accept()[0].close()


def test_a_host_that_is_not_heard_of_is_silent_and_its_worker_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(*_: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr("meshmend.job.embeddings.port.socket.create_connection", cut)
    assert asked_of(Contact(AWAY, 9)) == ({}, Standing.SILENT)


def test_a_dead_worker_is_gone() -> None:
    with socket.create_server((AWAY, 0)) as server:
        contact = Contact(AWAY, server.getsockname()[1])
    assert asked_of(contact) == ({}, Standing.GONE)


@dataclass
class Told:
    """Others that stand as the test says."""

    standing: dict[int, Standing]
    has: dict[int, Shelf] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)

    def read(self, rank: int, version: int, wanted: Wanted) -> Found:
        self.asked.append(rank)
        rows: dict[int, Floats | None] = {}
        if rank in self.has:
            rows = {number: self.has[rank].read(number, version, places) for number, places in wanted.items()}
        return {number: one for number, one in rows.items() if one is not None}, self.standing[rank]

    def close(self) -> None:
        """Nothing is open."""


def among(others: Told, rest: Callable[[], None] = lambda: None) -> TableHolder:
    """Rank 0 of four, which holds nothing, before step 4; rank 2 and then rank 1 hold each slice."""
    made = TableHolder(SHAPE, mm.row_sgd(0.1), Placement(SHAPE.slices, 1), Shelf(WIDTH), 0, others, rest)
    made.placement = replace(made.placement, holders=((2, 1),) * SHAPE.slices)
    made.version = 4
    return made


EACH = range(len(SIZES))
ROWS = np.arange(int(SHAPE.bounds[-1]))


@pytest.mark.parametrize("standing", [*Standing])
def test_a_buddy_is_asked_where_the_owner_gives_nothing(standing: Standing) -> None:
    others = Told({2: standing, 1: Standing.DONE}, {1: shelf(4, *EACH)})
    assert among(others).rows(ROWS[::-1]).tobytes() == SHAPE.first(ROWS[::-1])[:, :3].tobytes()
    assert others.asked == [2, 1], "each once, for all slices"


@pytest.mark.parametrize("standing", [Standing.BEHIND, Standing.LATE])
def test_who_may_still_answer_is_waited_for(standing: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that computes for minutes, or hangs, is others' business: rows are not lost."""
    others, now = Told({2: standing, 1: Standing.GONE}), [100.0]
    monkeypatch.setattr(holder_module.time, "monotonic", lambda: now[0])

    def rest() -> None:
        now[0] += 100
        if now[0] > 1000:
            others.has[2] = shelf(4, *EACH)

    assert len(among(others, rest).rows(ROWS)) == len(ROWS)


@pytest.mark.parametrize(("standing", "patience"), [(Standing.GONE, "TOGETHER"), (Standing.SILENT, "ROWS_SILENCE")])
def test_rows_that_nobody_has_end_the_run_once_nobody_may_still_answer(
    standing: Standing, patience: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(holder_module.time, "monotonic", lambda: now[0])
    others = Told({2: Standing.GONE, 1: standing})

    def rest() -> None:
        now[0] += 0.5

    with pytest.raises(mm.JobError, match="all workers that held slice 0 of the embedding tables are dead"):
        among(others, rest).rows(ROWS)
    assert now[0] - 100 == getattr(holder_module, patience) + 0.5


def test_a_receiver_makes_progress_known_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshmend.job.embeddings.requests.ROWS_LOOK", 0.001)
    one, other = socket.socketpair()
    rests = []

    def rest() -> None:
        rests.append(1)
        if len(rests) == 3:
            other.sendall(b"rows")

    with one, other:
        assert receiver(one, float("inf"))(0) == b""
        assert receiver(one, 1e12, rest)(4) == b"rows" and len(rests) == 3


def described(folder: Path, rank: int, hosts: list[str], added: list[str]) -> Settings:
    """A worker of a run of one worker per host."""
    listed = [{"name": name, "slots": 1} for name in hosts], [{"name": name, "slots": 1} for name in added]
    about = {"format": FORMAT, "workers": max(len(hosts), 1), "spares": 0, "hosts": listed[0], "added": listed[1]}
    (folder / "run.json").write_text(json.dumps(about))
    return Settings(run="tables", rank=rank, folder=folder)


def test_a_worker_listens_where_other_hosts_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    routes = {"a": "127.0.1.1", "b": "10.0.0.7", "c": ""}
    monkeypatch.setattr(spreading, "address_towards", lambda name: routes[name])
    assert spreading._address(described(tmp_path, 0, [], [])) == "", "on one host nobody listens"
    assert spreading._address(described(tmp_path, 0, ["a"], ["b"])) == ""
    assert spreading._address(described(tmp_path, 1, ["me@a", "me@b"], [])) == "10.0.0.7"
    with pytest.raises(mm.JobError, match="start the run with all hosts"):
        spreading._address(described(tmp_path, 1, ["a"], ["b"]))
    with pytest.raises(mm.JobError, match=r"hosts of the run \(a, c\) have no IPv4 address"):
        spreading._address(described(tmp_path, 1, ["a", "c"], []))
    (tmp_path / "run.json").unlink()
    with pytest.raises(mm.JobError, match="all hosts must share one runs folder"):
        spreading._address(Settings(run="tables", rank=0, folder=tmp_path))


def test_an_address_that_is_not_ours_is_told() -> None:
    with pytest.raises(mm.JobError, match=r"cannot listen on 192\.0\.2\.1, where other hosts would ask"):
        RowsPort("192.0.2.1", Shelf(WIDTH), lambda: 0, SIZES)


def test_rows_that_change_while_they_are_copied_are_not_given() -> None:
    copies = shelf(4, 5)
    copy = copies.copies[5]

    class Updated:
        """Rows whose update begins when they are read."""

        def __getitem__(self, places: Ids | slice) -> Floats:
            copy.version = BUSY
            return np.zeros((1, WIDTH), np.float32)

    copy.rows = Updated()  # type: ignore[assignment]
    assert copies.read(5, 4, EVERY) is None
