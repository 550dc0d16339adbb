"""Control files in which anything may stand: an answer or a `JobError`, in little memory, and nobody is killed."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from meshmend.base.processes import Identity
from meshmend.errors import JobError
from meshmend.job.protocol.rounds import MOST_LANES
from meshmend.job.shm import CourierSegment, create_as_agent, open_as_courier, open_as_worker, open_to_read, ranks_of
from meshmend.job.shm.control import HEADER, PLACES, SIZE, WORD
from meshmend.job.shm.inspect import member, members
from meshmend.job.shm.mailbox import CourierSide, WorkerSide, is_over, owes
from meshmend.job.shm.memory import SharedMemory
from meshmend.job.shm.records import AgentRecord, Assigned, CourierRecord, Order, PartWanted
from meshmend.job.shm.words import Record, unpack_lanes
from meshmend.run.agent import messages
from meshmend.run.agent.agent import Agent
from meshmend.run.supervisor.observations import RankSeen
from tests.strategies import damaged_bytes, modest

RUN = "damaged"
WORDS = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from([-1, 0, 1, 2, 3, 4, 7, 1 << 31, 1 << 32, 1 << 62])
)
FIELDS = [
    PLACES[kind].start + field.place + word
    for kind in PLACES
    for field in kind.fields.values()
    for word in range(min(field.size, 6))
]
"""Places of words that mean something; of a long mailbox, the first ones."""


@pytest.fixture(autouse=True)
def nobody_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(*what: object) -> None:
        pytest.fail(f"would kill {what}")

    for module, name in [(os, "kill"), (os, "killpg"), (signal, "pidfd_send_signal")]:
        monkeypatch.setattr(module, name, kill)


def uses(run: str) -> list[Callable[[], Any]]:
    """Everything that reads a control file."""
    seen, worker, courier = open_to_read(run, 0), open_as_worker(run, 0), open_as_courier(run, 0)
    side, other, kept = WorkerSide(worker), CourierSide(courier), SharedMemory(courier)
    records: list[Record] = [seen.agent, seen.worker, seen.courier, seen.chaos]
    fields = [(record, name) for record in records for name in record.fields]
    return [
        *((lambda record=record, name=name: getattr(record, name)) for record, name in fields),
        lambda: member(run, 0), lambda: members(run), lambda: is_over(seen), lambda: owes(seen), lambda: seen.epoch,
        lambda: side.question(3), side.halt, side.state_request, side.flip, side.is_over, side.take_given,
        other.is_answered, other.state, lambda: kept.done, lambda: kept.copied, lambda: kept.assigned,
        lambda: seen.buffers.part, lambda: seen.buffers.total(1), seen.files.read_error, lambda: ranks_of(run),
    ]  # fmt: skip


def posted(courier: CourierSegment) -> None:
    """Messages that can be damaged."""
    courier.courier.part_wanted = PartWanted(3, False, (0, 5, 63))
    courier.courier.assigned = Assigned(3, tuple(range(0, MOST_LANES, 7)))


@given(changes=st.dictionaries(st.sampled_from(FIELDS), WORDS, min_size=1, max_size=8))
@example(changes={25: (1 << 63) - 1})
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_words_are_an_answer_or_a_sentence(home: Path, tmp_path: Path, changes: dict[int, int]) -> None:
    """There is no worker, so that whoever is killed for it is somebody else."""
    create_as_agent(RUN, 0)
    posted(open_as_courier(RUN, 0))
    agent = Agent(RUN, tmp_path)
    agent.act(messages.Adopt(ranks=[0]))
    with (home / RUN / "0.control").open("r+b") as file:
        for place, value in changes.items():
            file.seek(place * WORD)
            file.write(struct.pack("=q", value))
    with modest(4 << 20):
        for use in uses(RUN):
            try:
                use()
            except (JobError, FileNotFoundError) as error:  # a state that is promised and not there
                assert "\n" not in str(error)
    (tmp_path / "output" / "worker-0.log").write_text("line\n")
    for command in (messages.Halt(writer=0), messages.Release(rank=0), messages.Clear()):
        agent.act(command)
    assert all(isinstance(one, RankSeen) for one in agent.look())
    agent.output()


def test_a_number_that_no_process_can_have_is_nobody() -> None:
    ours = Identity.of(os.getpid())
    for number in (-1, 0, 1 << 23, 1 << 40, (1 << 63) - 1):
        one = Identity(number, ours.born, ours.boot, ours.space)
        one.kill()
        one.kill_group()
        assert not one.alive


@pytest.mark.parametrize("word", [-1, -(1 << 63), 1 << 32])
def test_a_bitmap_of_lanes_has_an_end(word: int) -> None:
    with pytest.raises(JobError):
        unpack_lanes([1, word])


@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_refused_or_read(home: Path, data: st.DataObject) -> None:
    path = create_as_agent(RUN, 0).files.path("control")
    assert path.parent == home / RUN
    posted(open_as_courier(RUN, 0))
    path.write_bytes(data.draw(damaged_bytes(path.read_bytes())))
    for open_ in (open_to_read, open_as_worker, open_as_courier):
        try:
            with modest(4 << 20):
                open_(RUN, 0)
        except JobError as error:
            assert str(path) in str(error) and "\n" not in str(error)


@given(data=st.binary(max_size=200) | st.sampled_from([b"[" * 100_000, b'{"step": ' + b"9" * 5000 + b"}", b"{}", b"1"]))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_an_exception_of_a_worker_or_none(home: Path, data: bytes) -> None:
    files = create_as_agent(RUN, 0).files
    assert home in files.path("error").parents
    files.path("error").write_bytes(data)
    with modest(16 << 20):
        found = files.read_error()
    assert found is None or isinstance(found, dict)


def test_a_long_exception_is_kept_short_and_a_pipe_in_its_place_holds_nobody_up(home: Path) -> None:
    del home
    files = create_as_agent(RUN, 0).files
    files.write_error(3, "e" * (8 << 20), "\0é" * (8 << 20), mistake=False)
    found = files.read_error()
    assert found is not None and found["step"] == 3 and len(found["trace"]) > 1000
    files.path("error").unlink()
    os.mkfifo(files.path("error"))
    assert files.read_error() is None


def test_a_state_that_is_empty_or_a_pipe_is_refused(home: Path) -> None:
    del home
    files = create_as_agent(RUN, 0).files
    files.path("state").touch()
    os.mkfifo(files.path("given"))
    for read in (files.read_state, files.take_given):
        with pytest.raises(JobError):
            read()


def test_a_worker_whose_memory_is_damaged_is_ended_and_said_to_be(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are looked after as before, and the rank can be started again."""
    ended: list[int] = []
    agent = Agent(RUN, tmp_path)
    for rank in (0, 1):
        create_as_agent(RUN, rank).agent.worker = Identity.of(os.getpid())
    agent.act(messages.Adopt(ranks=[0, 1]))
    for rank, worker in agent.workers.items():
        monkeypatch.setattr(worker, "end", lambda rank=rank: ended.append(rank))
    phase = PLACES[CourierRecord].start + CourierRecord.phase.place
    order = PLACES[AgentRecord].start + AgentRecord.order.place
    courier = open_as_courier(RUN, 1)
    courier.courier.world = 1
    with (home / RUN / "1.control").open("r+b") as file:
        for place, value in [(phase, 77), (order, 2), (order + 1, 1), (order + 2, 9)]:
            file.seek(place * WORD)
            file.write(struct.pack("=q", value))
    agent.act(messages.Halt(writer=0))
    for _ in range(2):
        fine, hurt = agent.look()
        assert fine.status is None and hurt.status is not None and hurt.error is not None
    assert ended == [1]
    mail = agent.workers[0].segment.agent.order
    assert mail is not None and mail.body.order is Order.HALT_AND_SAVE
    assert SIZE > HEADER  # a record after the header
