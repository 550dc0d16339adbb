"""The launcher of a run, as another host sees it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshmend.base.processes import Identity
from meshmend.errors import JobError
from meshmend.run import heartbeat
from meshmend.run.entry import attach, resume
from meshmend.run.heartbeat import NOTE, RunningLauncher, beating, require_alone
from meshmend.run.spec import RunSpec
from tests.processes import wait_for

FAR = RunningLauncher(host="far", process=Identity(4711, 5, boot=1, space=1))


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT", 0.02)
    monkeypatch.chdir(tmp_path)


def test_a_run_whose_launcher_lives_elsewhere_is_refused(tmp_path: Path) -> None:
    with beating(tmp_path, FAR), pytest.raises(JobError, match=r"4711 on host far"):
        require_alone("mine", tmp_path, patience=60.0)


@pytest.mark.parametrize("enter", [attach, resume])
def test_neither_attach_nor_resume_takes_it_over(enter: object) -> None:
    Path("train.py").touch()
    spec = RunSpec(run="mine", script=["train.py"], workers=2)
    spec.folder.mkdir(parents=True)
    spec.save()
    with beating(spec.folder, FAR), pytest.raises(JobError, match=r"4711 on host far"):
        assert callable(enter) and enter(spec)


def test_one_that_was_killed_is_taken_over(tmp_path: Path) -> None:
    with beating(tmp_path, FAR):
        left = (tmp_path / NOTE).read_text()
    require_alone("mine", tmp_path)  # it has ended, and there is nothing to wait for
    (tmp_path / NOTE).write_text(left)
    require_alone("mine", tmp_path, patience=0.1)


def test_one_that_gives_up_takes_no_heartbeat_from_another(tmp_path: Path) -> None:
    """Two have begun at the same moment, so that the second one's note is in the place of the first one's."""

    def noted() -> object:
        found = heartbeat._look(tmp_path)
        return found and found[0]

    with beating(tmp_path, FAR):
        with beating(tmp_path):
            assert noted() == RunningLauncher()
        wait_for(lambda: noted() == FAR)
    first = beating(tmp_path, FAR)
    first.__enter__()
    with beating(tmp_path):
        first.__exit__(None, None, None)
        assert noted() == RunningLauncher()
    assert noted() is None


def test_on_its_own_host_the_lock_tells(tmp_path: Path) -> None:
    with beating(tmp_path):
        require_alone("mine", tmp_path, patience=60.0)


@pytest.mark.parametrize("text", ["", "[]", '{"host": 3}', '{"process": {"number": "x"}}'])
def test_a_damaged_note_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / NOTE).write_text(text)
    require_alone("mine", tmp_path, patience=60.0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, 20))
def test_whatever_is_in_a_note_nobody_fails_on_it(tmp_path: Path, data: bytes, place: int, length: int) -> None:
    """Bytes of any kind, alone or in the middle of a note that was right."""
    with beating(tmp_path):
        whole = (tmp_path / NOTE).read_bytes()
    for text in (data, whole[:place] + data + whole[place + length :]):
        (tmp_path / NOTE).write_bytes(text)
        require_alone("mine", tmp_path, patience=0.0)


def test_nobody_waits_for_a_pipe_in_its_place(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NOTE)
    require_alone("mine", tmp_path, patience=60.0)
