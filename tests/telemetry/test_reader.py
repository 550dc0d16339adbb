"""Readers: all events at once, or only the new ones, whatever state the files are in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmend.errors import FormatError, JobError
from meshmend.telemetry import (
    FORMAT,
    Committed,
    Component,
    Died,
    Epoch,
    How,
    Log,
    Skipped,
    folder_of,
    follow,
    read,
    reader,
    steps_done,
)
from meshmend.telemetry.compaction import compact
from meshmend.telemetry.folder import OLDEST
from meshmend.telemetry.steps import spread
from tests.telemetry.test_log import struck


def test_one_writer_can_be_read_alone(tmp_path: Path) -> None:
    died = Died(epoch=Epoch(0, 1), rank=1, what=Component.WORKER, how=How.SIGNAL, value=9)
    Log(tmp_path, "launcher").write(died)
    Log(tmp_path, "worker-0").write(struck(1))
    assert read(tmp_path, "launcher") == [died] and len(read(tmp_path)) == 2


def test_what_is_not_an_event_is_not_taken_for_a_torn_one(tmp_path: Path) -> None:
    Log(tmp_path, "launcher").write(struck(1))
    path = tmp_path / "events" / "worker-0.jsonl"
    unknown = {**struck(1).values(), "what": "CLOUD"}
    old = {name: value for name, value in struck(1).values().items() if name != "epoch"}
    for line in ("hello", json.dumps({"kind": "Nothing"}), json.dumps([1]), json.dumps(unknown), json.dumps(old)):
        path.write_text(f"{line}\n{struck(2).line()}\n")
        with pytest.raises(FormatError, match="line 1 "):
            read(tmp_path)
        assert read(tmp_path, "launcher") == [struck(1)]


def test_a_follower_gives_each_event_once(tmp_path: Path) -> None:
    first = Log(tmp_path, "worker-0")
    first.write(struck(1))
    follower = follow(tmp_path)
    assert follower.poll() == [struck(1)] and follower.poll() == []
    first.write(struck(3))
    Log(tmp_path, "worker-1").write(struck(2))  # a writer that appears later
    assert follower.poll() == [struck(2), struck(3)] and follower.poll() == []


def test_a_follower_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    Log(tmp_path, "worker-0").write(struck(0))
    path, told = tmp_path / "events" / "worker-0.jsonl", list[str]()
    follower, line = follow(tmp_path, torn=told.append), struck(1).line()
    assert follower.poll() == [struck(0)]
    for begin in range(0, len(line), 7):
        with path.open("a") as file:
            file.write(line[begin : begin + 7])
        assert follower.poll() == []
    with path.open("a") as file:
        file.write("\n")
    assert follower.poll() == [struck(1)] and told == []


def test_a_follower_reports_a_torn_line_once(tmp_path: Path) -> None:
    Log(tmp_path, "worker-0").write(struck(0))
    path, told = tmp_path / "events" / "worker-0.jsonl", list[str]()
    follower = follow(tmp_path, torn=told.append)
    with path.open("a") as file:
        file.write(struck(1).line()[:20])  # its writer is killed here
    assert follower.poll() == [struck(0)] and told == []
    Log(tmp_path, "worker-0").write(struck(2))  # the next one of this rank
    assert follower.poll() == [struck(2)] and follower.poll() == []
    assert len(told) == 1 and "line 2 " in told[0]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60)), max_size=30))
@settings(max_examples=60, deadline=None)
def test_following_is_reading_in_pieces(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[tuple[int, int]]
) -> None:
    """However the files of three writers grow, a follower gives what one reading at the end gives."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "events").mkdir()
    texts = ["".join(struck(10 * who + n).line() + "\n" for n in range(3)).encode() for who in range(3)]
    written, follower, got = [0, 0, 0], follow(folder), []
    for who, size in [*chunks, *((who, 10_000) for who in range(3))]:
        with (folder / "events" / f"worker-{who}.jsonl").open("ab") as file:
            file.write(texts[who][written[who] : written[who] + size])
        written[who] += size
        got += follower.poll()
    assert sorted(got, key=lambda event: event.time) == read(folder)
    assert len(got) == 9


def test_what_is_no_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="there is no run in"):
        follow(tmp_path)


@pytest.mark.parametrize("other", [OLDEST - 1, FORMAT + 1])
def test_a_folder_of_another_version_is_refused(tmp_path: Path, other: int) -> None:
    Log(tmp_path, "launcher").write(struck(1))
    (tmp_path / "run.json").write_text(json.dumps({"format": other}))
    for use in (read, follow):
        with pytest.raises(FormatError) as error:
            use(tmp_path)
        assert f"format {other}" in str(error.value) and f"formats {OLDEST} to {FORMAT}" in str(error.value)
        assert "\n" not in str(error.value)
    (tmp_path / "run.json").write_text("damaged")  # what is there of its events can be read all the same
    assert read(tmp_path) == [struck(1)]


def test_a_run_is_a_name_or_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESHMEND_RUNS", raising=False)
    assert (folder_of("a"), folder_of("b/a")) == (Path("runs/a"), Path("b/a"))
    monkeypatch.setenv("MESHMEND_RUNS", "elsewhere")
    assert folder_of("a") == Path("elsewhere/a")


def test_the_number_of_steps_done_is_read_from_the_ends_of_ledgers(tmp_path: Path) -> None:
    assert steps_done(tmp_path) == 0
    epoch = Epoch(0, 1)
    for rank, steps in ((0, 2000), (1, 1500)):
        log = Log(tmp_path, f"worker-{rank}")
        for step in range(steps):
            log.write(Committed(epoch=epoch, rank=rank, step=step, by=[[0, 16]], digest="x" * 16))
    assert (tmp_path / "events" / "worker-0.jsonl").stat().st_size > 2 * reader.END
    assert steps_done(tmp_path) == 2000
    log.write(Skipped(epoch=epoch, rank=1, step=2000, by=[], why="NaN"))
    log.write(struck(1))
    with (tmp_path / "events" / "worker-1.jsonl").open("a") as file:
        file.write('{"kind":"Committed","step":9000,')
    assert steps_done(tmp_path) == 2001


@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_gathered_or_not_a_follower_gives_every_event_once_while_files_are_compacted(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[int, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("run")
    log = Log(folder, "worker-0")
    lines, gathered, plain = follow(folder), follow(folder), 0
    got: list[list[int]] = [[], []]
    for count, compacted in pieces:
        for _ in range(count):
            log.write(Committed(epoch=Epoch(0, 1), rank=0, step=plain, by=[[0, 4]], digest=f"{plain:012x}"))
            plain += 1
        if compacted:
            log.close()
            compact(folder / "events" / "worker-0.jsonl")
            log = Log(folder, "worker-0")
        got[0] += [event.step for event in lines.poll() if isinstance(event, Committed)]
        got[1] += [event.step for event in spread(gathered.stream()) if isinstance(event, Committed)]
    log.close()
    assert got == [[*range(plain)]] * 2
