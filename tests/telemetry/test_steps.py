"""Weeks of steps: files follow one another and become small, and nothing of what they prove is lost on the way."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import zlib
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmend.errors import FormatError
from meshmend.telemetry import (
    Began,
    Committed,
    Ended,
    Epoch,
    Event,
    Log,
    Opened,
    Skipped,
    Steps,
    folder,
    follow,
    parse,
    read,
    steps_done,
)
from meshmend.telemetry.compaction import compact, compacted
from meshmend.telemetry.folder import segments
from meshmend.telemetry.steps import MOST
from tests.telemetry.test_log import struck

EPOCH = Epoch(0, 1)


def line(step: int, rank: int = 0, **values: Any) -> Committed:
    digest = f"{(step * 2654435761) & 0xFFFF_FFFF_FFFF:012x}"
    made = Committed(
        time=1e9 + step / 10, epoch=EPOCH, rank=rank, step=step, by=[[0, 4], [1, 4]], digest=digest,
        metrics={"loss": float(np.float32(1 / (step + 1)))},
    )  # fmt: skip
    return replace(made, **values)


KINDS = ["steps", "steps", "skip", "struck", "again", "lanes", "metric", "digest", "epoch"]


@st.composite
def ledgers(draw: st.DrawFn) -> list[Event]:
    """What one worker may write: ordinary steps, and all that is not."""
    events: list[Event] = []
    step = draw(st.integers(0, 5))
    for _ in range(draw(st.integers(0, 12))):
        match draw(
            st.sampled_from(["steps", "steps", "skip", "struck", "again", "lanes", "metric", "digest", "epoch"])
        ):
            case "steps":
                count = draw(st.integers(1, 30))
                events += [line(one) for one in range(step, step + count)]
                step += count
            case "skip":
                events.append(Skipped(epoch=EPOCH, rank=0, step=step, by=[], why="NaN"))
                step += 1
            case "struck":
                events.append(struck(1))
            case "again" if step:
                events.append(line(step - 1))
            case "lanes":
                events.append(line(step, by=[[0, 8]]))
                step += 1
            case "metric":
                events.append(line(step, metrics=draw(st.sampled_from([{}, {"a": 1.0}, {"loss": float("inf")}]))))
                step += 1
            case "digest":
                events.append(line(step, digest=draw(st.sampled_from(["", "x", "F" * 12, "f" * 13]))))
                step += 1
            case _:
                events.append(line(step, epoch=Epoch(0, 1, draw(st.integers(0, 2))), time=draw(st.floats(0, 2e9))))
                step += 1
    return events


def same(found: list[Event], expected: list[Event]) -> None:
    """Equal, but for times below a microsecond, metrics beyond single precision, and stalls within 5 %."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert abs(one.time - other.time) < 1e-6
        if isinstance(one, Committed) and isinstance(other, Committed):
            assert one.metrics.keys() == other.metrics.keys()
            np.testing.assert_allclose([*one.metrics.values()], [*other.metrics.values()], rtol=1e-6)
            assert abs(one.stall - other.stall) <= 0.05 * other.stall + 1e-6
            one = replace(one, metrics=other.metrics, stall=other.stall)
        assert replace(one, time=other.time) == other


@given(st.lists(st.floats(0, 3600), min_size=1, max_size=30))
def test_stalls_are_kept_to_five_percent(seconds: list[float]) -> None:
    kept = Steps.gather([line(step, stall=stall) for step, stall in enumerate(seconds)])
    np.testing.assert_allclose(parse(kept.values()).waited, seconds, rtol=0.05, atol=1e-6)  # type: ignore[attr-defined]


def test_steps_of_the_version_before_have_no_stalls() -> None:
    values = Steps.gather([line(step, stall=1.0) for step in range(3)]).values()
    del values["stalls"]
    found = parse(values)
    assert isinstance(found, Steps) and [one.stall for one in found.lines()] == [0, 0, 0]


def put(path: Path, events: list[Event], more: bytes = b"") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(event.line() + "\n" for event in events).encode() + more)


@given(ledgers())
@settings(max_examples=100, deadline=None)
def test_a_compacted_file_holds_the_same_events_in_the_same_order(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event]
) -> None:
    run = tmp_path_factory.mktemp("run")
    path = run / "events" / "worker-0.jsonl"
    put(path, events)
    before = path.stat().st_size
    compact(path)
    assert path.stat().st_size <= before
    same(read(run), read_plainly(events))
    compact(path)
    same(read(run), read_plainly(events))


def read_plainly(events: list[Event]) -> list[Event]:
    return [parse(event.values()) for event in events]


def test_ordinary_steps_take_few_bytes(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(0, 1e-3, 5000)
    events: list[Event] = [
        line(step, time=1e9 + step / 10 + noise[step], metrics={"loss": float(1 + noise[step])},
             digest=f"{zlib.crc32(bytes(step)) << 16:012x}", stall=round(1e-3 * abs(1 + 300 * noise[step]), 6))
        for step in range(5000)
    ]  # fmt: skip
    path = tmp_path / "events" / "worker-0.jsonl"
    put(path, events)
    compact(path)
    assert path.stat().st_size / len(events) < 20
    same(read(tmp_path), events)
    assert steps_done(tmp_path) == 5000


def test_what_is_torn_or_strange_stays_to_the_byte() -> None:
    lines = [b'{"kind":"Comm\n', b"\n", b"hello\n", line(3).line().encode() + b"\n", line(4).line().encode()]
    assert b"".join(compacted(lines)) == b"".join(lines)


def test_columns_that_do_not_fit_are_refused_before_they_are_unpacked() -> None:
    good = Steps.gather([line(step) for step in range(9)]).values()
    bomb = b64encode(zlib.compress(bytes(20_000_000))).decode()
    for change in (
        {"columns": bomb}, {"columns": good["columns"][:-8]}, {"columns": "é"}, {"columns": ""}, {"count": 8},
        {"count": MOST + 1}, {"count": 0}, {"metrics": []}, {"metrics": ["loss", "loss"]}, {"step": -1},
        {"metrics": [str(number) for number in range(1000)]}, {"by": [[0, -1]]}, {"by": [[0]]},
    ):  # fmt: skip
        with pytest.raises(FormatError):
            parse({**good, **change})


# ── files that follow one another ──


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "FULL", 3000)


def wait(log: Log) -> None:
    if log._compaction is not None:
        log._compaction.join(30)


@pytest.mark.usefixtures("small")
def test_full_files_are_followed_by_others_and_become_small(tmp_path: Path) -> None:
    log, follower, got = Log(tmp_path, "worker-0"), follow_soon(tmp_path), list[Event]()
    for step in range(300):
        log.write(line(step))
        wait(log)
        if step % 7 == 0:
            got += follower.poll()
        if step == 140:  # its writer is killed; the next one continues
            log.close()
            log = Log(tmp_path, "worker-0")
    files = segments(tmp_path)["worker-0"]
    assert len(files) > 10 and [number for number, _ in files] == list(range(len(files)))
    assert all(path.stat().st_size < 2000 for _, path in files[:-1])
    got += follower.poll()
    expected: list[Event] = [line(step) for step in range(300)]
    same(read(tmp_path), expected)
    same(got, expected)
    assert steps_done(tmp_path) == 300 and follower.poll() == []
    assert not [*tmp_path.glob("events/.*")]


def follow_soon(run: Path) -> Any:
    (run / "events").mkdir(parents=True, exist_ok=True)
    return follow(run)


def test_a_follower_does_not_mind_that_the_file_it_reads_becomes_small(tmp_path: Path) -> None:
    path, events = tmp_path / "events" / "worker-0.jsonl", [line(step) for step in range(60)]
    put(path, [*events])
    follower = follow(tmp_path)
    same(follower.poll(), [*events])
    put(tmp_path / "events" / "worker-0.0001.jsonl", [line(60)])
    with path.open("a") as file:
        file.write(struck(0).line() + "\n")  # written before the next file was begun, and not read yet
    compact(path)
    assert path.stat().st_size < 2000
    found = follower.poll()
    assert found[0] == struck(0) and len(found) == 2 and follower.poll() == []


def test_a_file_that_somebody_writes_to_is_left_alone(tmp_path: Path) -> None:
    log = Log(tmp_path, "worker-0")
    for step in range(60):
        log.write(line(step))
    path = tmp_path / "events" / "worker-0.jsonl"
    before = path.read_bytes()
    compact(path)
    assert path.read_bytes() == before
    with path.open("rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Killed(BaseException):
    pass


class AtOnce:
    """A thread that does its work when it is started."""

    def __init__(self, target: Callable[..., None], args: list[Any], name: str) -> None:
        del name
        self.start = lambda: target(*args)

    def is_alive(self) -> bool:
        return False


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("after", range(160))
def test_a_kill_between_any_two_operations_loses_nothing_and_counts_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """The writer is killed before its so-many-th call of the system; then another one continues."""
    left = [after]

    def count(function: Any) -> Any:
        def called(*values: Any, **options: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return function(*values, **options)

        return called

    monkeypatch.setattr(folder, "Thread", AtOnce)
    with monkeypatch.context() as killing:
        for name in ("replace", "fsync", "open", "close", "write"):
            killing.setattr(os, name, count(getattr(os, name)))
        killing.setattr(fcntl, "flock", count(fcntl.flock))
        killing.setattr(Path, "unlink", count(Path.unlink))
        written = 0
        with suppress(Killed):
            log = Log(tmp_path, "worker-0")
            for step in range(70):
                log.write(line(step))
                written = step + 1
    steps = [event.step for event in read(tmp_path)] if (tmp_path / "events").exists() else []
    assert steps in ([*range(written)], [*range(written + 1)])
    log = Log(tmp_path, "worker-0")
    for step in range(len(steps), len(steps) + 70):
        log.write(line(step))
    same(read(tmp_path), [line(step) for step in range(len(steps) + 70)])


WRITER = """
import sys
from pathlib import Path
from meshmend.telemetry import Log, folder
from tests.telemetry.test_steps import line
folder.FULL = 20_000
log = Log(Path(sys.argv[1]), "worker-0")
for step in range(int(sys.argv[2]), 10**9):
    log.write(line(step))
    print(step, flush=True)
"""


def test_writers_that_are_really_killed_lose_nothing(tmp_path: Path) -> None:
    begin = 0
    for kill_at in (500, 1100):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(begin)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            last = next(int(text) for text in writer.stdout if int(text) >= kill_at)
            writer.send_signal(signal.SIGKILL)
        found = [event.step for event in read(tmp_path)]
        assert found == [*range(len(found))] and len(found) > last
        begin = len(found)


# ── what the launcher says ──


def test_only_the_last_attempt_counts_as_done(tmp_path: Path) -> None:
    """A run filled the disk in step 2969 and was resumed from the beginning, with a script of three steps."""
    put(tmp_path / "events" / "worker-1.jsonl", [line(step, rank=1) for step in range(2960, 2969)])
    again = Epoch(1, 1)
    opened = Opened(epoch=again, rank=0, step=0, size=8, batch=8, lanes=8, seed=0, reduction="exact")
    put(tmp_path / "events" / "worker-0.jsonl", [line(2968), opened, *(line(step, epoch=again) for step in range(3))])
    began = [began_of(attempt) for attempt in (0, 1)]
    put(tmp_path / "events" / "launcher.jsonl", [*began])
    assert steps_done(tmp_path) == 3


def began_of(attempt: int, time: float = 0.0) -> Event:
    return Began(time=time, epoch=Epoch(attempt), workers=2, spares=0, on_failure="replace")


def test_a_clock_that_was_set_back_changes_no_order(tmp_path: Path) -> None:
    first = [began_of(0, 5000.0), Ended(time=5001.0, epoch=Epoch(0), status=0)]
    then: list[Event] = [began_of(1, 100.0)]
    put(tmp_path / "events" / "launcher.jsonl", [*first, *then])
    put(tmp_path / "events" / "worker-0.jsonl", [line(0, time=5000.5), line(1, time=99.0), line(2, time=5000.7)])
    events = read(tmp_path)
    assert [event for event in events if not isinstance(event, Committed)] == [*first, *then]
    assert [event.step for event in events if isinstance(event, Committed)] == [0, 1, 2]
    assert events[-1] == then[0], "a later attempt comes after all of the one before"


def test_files_are_known_by_their_names(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.0002.jsonl", "a.0010.jsonl", "a.1.jsonl", ".a.0003.jsonl.new", "a.b.jsonl", "b.jsonl"):
        put(tmp_path / "events" / name, [])
    assert {writer: [number for number, _ in files] for writer, files in segments(tmp_path).items()} == {
        "a": [0, 2, 10], "b": [0],
    }  # fmt: skip
