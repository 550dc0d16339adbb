"""What workers print is shown whole: in lines, in pieces where a line is too long, and of bars now and then a state."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from meshmend.base.clocks import PROGRESS_BAR
from meshmend.job.shm import create_as_agent, leave
from meshmend.run.agent.agent import Agent
from meshmend.run.agent.local_worker import LocalWorker
from meshmend.run.agent.messages import read_lines, write_line
from meshmend.run.agent.output import PIECE, Tail
from tests.jobs.jobs import Job


def fed(pieces: list[bytes], seconds: float = 0.02) -> list[str]:
    """All lines of an output that comes in these pieces, one a look."""
    tail, waiting, lines = Tail(), b"", []
    for look, piece in enumerate([*pieces, b""]):
        waiting += piece
        some, done = tail.cut(waiting, look * seconds, ended=look == len(pieces))
        waiting, lines = waiting[done:], lines + some
    return lines


@pytest.mark.parametrize("seed", range(20))
def test_lines_are_those_that_were_written_however_they_come(seed: int) -> None:
    dice = random.Random(seed)
    lines = ["".join(dice.choices("aé✓ \x0b\x0c\u2028", k=dice.randrange(9))) for _ in range(30)]
    data = "\n".join([*lines, ""]).encode()
    cuts = sorted(dice.choices(range(len(data)), k=10))
    assert fed([data[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]) == lines


def test_the_last_line_needs_no_end() -> None:
    assert fed([b"one\ntw", b"o"]) == ["one", "two"]
    assert fed([b"one\r\ntwo\r\n"]) == ["one", "two"]


def test_a_line_that_is_too_long_comes_in_pieces_and_holds_nothing_back() -> None:
    tail = Tail()
    data = ("é" * PIECE).encode()[1:]  # every letter lies across an even place
    lines, done = tail.cut(data[:PIECE], 0.0, ended=False)
    assert lines == ["\ufffd" + "é" * (PIECE // 2 - 1)] and done == PIECE - 1
    assert tail.cut(data[done : done + PIECE], 0.0, ended=False)[0] == ["é" * (PIECE // 2)]
    assert tail.cut(b"after\n", 0.0, ended=False) == (["after"], 6)


@pytest.mark.parametrize("form", ["\r{}", "{}\r"])
def test_a_progress_bar_is_shown_once_a_second_and_at_its_end(form: str) -> None:
    states = [f"{i} of 500" for i in range(501)]
    lines = fed([*(form.format(state).encode() for state in states), b"\nafter\n"], seconds=0.01)
    assert lines[0] == "0 of 500" and lines[-2:] == ["500 of 500", "after"]
    assert 5 <= len(lines) - 2 <= 5.01 / PROGRESS_BAR + 1 and len(set(lines)) == len(lines)


def test_a_bar_that_ends_with_its_worker_and_one_that_is_wiped_away() -> None:
    assert fed([b"\r1", b"\r2", b"\r3"]) == ["1", "3"]
    assert fed([b"\r1"]) == ["1"]
    assert fed([b"\r1", b"\r     \r", b"done\n"]) == ["1", "done"]


def test_bars_take_no_more_room_than_a_state() -> None:
    tail = Tail()
    data = b"".join(b"\r%d" % i for i in range(1000))
    assert tail.cut(data, 0.0, ended=False) == (["999"], len(data) - 4)
    assert tail.cut(b"\r999\r1000", 0.1, ended=False) == ([], 4)
    assert tail.cut(b"\r" + b"x" * PIECE, 0.1, ended=False)[1] == PIECE + 1


def test_all_that_was_written_before_the_end_is_shown(job: Job, tmp_path: Path) -> None:
    agent = Agent(job.name, tmp_path)
    segment = create_as_agent(job.name, 0)
    agent.workers[0] = LocalWorker(0, segment, status=0)
    (tmp_path / "output" / "worker-0.log").write_bytes(b"".join(b"%08d\n" % i for i in range(400_000)) + b"end")
    lines = agent.output()
    leave(job.name)
    assert len(lines) == 400_001 and lines[-1] == (0, "end") and agent.output() == []


def test_a_message_of_any_length_comes_over_a_pipe_whole() -> None:
    out, into = os.pipe()
    buffer, value = bytearray(), {"output": ["x" * 30_000, "y" * 30_000]}
    write_line(into, value)
    os.write(into, b'hello\n{"a"')
    got = []
    while not got or b'{"a"' not in buffer:
        got += read_lines(out, buffer) or []
    os.write(into, b": 1}\n")
    assert [*got, *(read_lines(out, buffer) or [])] == [value, {"a": 1}] and not buffer
    os.close(out)
    os.close(into)
