"""Files of events that anything may have happened to: a sentence or a correct reading, and little memory."""

from __future__ import annotations

import json
import os
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshmend import cli, report
from meshmend.errors import FormatError, MeshmendError
from meshmend.telemetry import Committed, Epoch, Event, Events, Opened, Steps, read, steps_done
from meshmend.telemetry.folder import FORMAT, OLDEST, OtherVersion
from tests.report.made import Attempt, run
from tests.strategies import damaged, damaged_bytes, modest
from tests.telemetry.test_types import ONE_OF_EACH

RUN = run([Attempt(0, 6, 2, {3: 1}), Attempt(4, 8, 2)], skips=[2])
STEPS = Steps.gather([
    Committed(epoch=Epoch(1, 1), rank=1, step=step, by=[[0, 2], [1, 2]], digest=f"{step:012x}", metrics={"loss": 1.0})
    for step in range(8, 20)
])  # fmt: skip
LINES = [*RUN, STEPS]


def put(folder: Path, lines: list[bytes]) -> Path:
    path = folder / "events" / "worker-0.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(lines))
    return path


def judge(folder: Path) -> None:
    """Everything that reads events gives a sentence, or an answer."""
    for use in (
        lambda: report.check(Events(folder)),
        lambda: report.incidents(Events(folder)),
        lambda: report.compare(Events(folder), Events(folder)),
        lambda: read(folder),
        lambda: steps_done(folder),
    ):
        try:
            with modest():
                use()
        except MeshmendError as error:
            assert "\n" not in str(error) and "\0" not in str(error) and len(str(error)) < 1000


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_a_line_that_is_wrong_is_a_sentence(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    which = data.draw(st.integers(0, len(LINES) - 1))
    values = [json.dumps(event.values()) for event in LINES]
    values[which] = json.dumps(data.draw(damaged(LINES[which].values())))
    folder = tmp_path_factory.mktemp("run")
    put(folder, [(value + "\n").encode() for value in values])
    judge(folder)


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_bytes_that_are_wrong_are_a_sentence(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    good = b"".join((event.line() + "\n").encode() for event in LINES)
    folder = tmp_path_factory.mktemp("run")
    put(folder, [data.draw(damaged_bytes(good))])
    judge(folder)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_every_kind_of_event_is_checked(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    event = data.draw(st.sampled_from(ONE_OF_EACH))
    folder = tmp_path_factory.mktemp("run")
    path = put(folder, [(json.dumps(data.draw(damaged(event.values()))) + "\n").encode()])
    try:
        found = read(folder)
    except FormatError as error:
        assert f"{path}, line 1 " in str(error) and "\n" not in str(error)
    else:
        assert all(isinstance(one, Event) for one in found)


HUGE: dict[str, dict[str, object]] = {
    "a step far away": {"step": 1 << 52},
    "a batch": {"batch": 1 << 60},
    "samples": {"size": 1 << 60},
    "lanes": {"lanes": 65000},
    "counted": {"by": [[0, 1 << 60]]},
    "a rank": {"rank": 65000},
    "an attempt": {"epoch": [1 << 60, 1, 0]},
}


@pytest.mark.parametrize("name", HUGE)
def test_huge_numbers_take_little_memory(tmp_path: Path, name: str) -> None:
    """Whether all such lines have the number, or one does."""
    field = next(iter(HUGE[name]))
    for kind in (Opened, Committed, Steps):
        has = [at for at, event in enumerate(LINES) if isinstance(event, kind) and field in event.values()]
        for which in ([*has], has[:1]):
            lines = [
                json.dumps({**e.values(), **HUGE[name]} if at in which else e.values()) for at, e in enumerate(LINES)
            ]
            put(tmp_path, [(line + "\n").encode() for line in lines])
            judge(tmp_path)


@pytest.mark.parametrize("place", range(0, 600, 13))
def test_an_audit_of_a_file_that_was_cut_short_never_ends_in_a_trace(
    tmp_path: Path, place: int, capsys: pytest.CaptureFixture[str]
) -> None:
    good = b"".join((event.line() + "\n").encode() for event in LINES)
    put(tmp_path / "r", [good[:-place]])
    assert cli.main(["audit", str(tmp_path / "r")]) in (0, 1, 2)
    assert "Traceback" not in capsys.readouterr().err


@given(st.data())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lines_that_come_twice_prove_the_same(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    lines = [(event.line() + "\n").encode() for event in RUN]
    folder = tmp_path_factory.mktemp("run")
    put(folder, lines)
    account = report.check(Events(folder))
    put(folder, [*lines, *data.draw(st.lists(st.sampled_from(lines)))])
    assert account.clean and report.check(Events(folder)) == account


@pytest.mark.parametrize("name", ["events/worker-0.jsonl", "run.json"])
@pytest.mark.parametrize("what", ["folder", "pipe", "link to nothing"])
def test_what_is_no_file_is_a_sentence(
    tmp_path: Path, name: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put(tmp_path, [(json.dumps(event.values()) + "\n").encode() for event in LINES])
    path = tmp_path / name
    path.unlink(missing_ok=True)
    {"folder": Path.mkdir, "pipe": os.mkfifo, "link to nothing": lambda path: path.symlink_to("nowhere")}[what](path)
    judge(tmp_path)
    if name != "run.json":  # an audit needs none
        assert cli.main(["audit", f"{tmp_path}/"]) == 2
        assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize("found", [OLDEST - 1, FORMAT + 1])
def test_another_version_names_the_formats_that_this_one_reads(found: int) -> None:
    said = str(OtherVersion(Path("runs/a"), found, "9.9"))
    assert f"format {found}" in said and f"({metadata.version('meshmend')}) reads formats {OLDEST} to {FORMAT}" in said
