"""The launcher of a run, as another host sees it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshmend.base.processes import Identity
from meshmend.errors import JobError
from meshmend.run import heartbeat
from meshmend.run.entry import attach, resume
from meshmend.run.heartbeat import RunningLauncher, beating, note_of
from meshmend.run.spec import RunSpec
from tests.processes import wait_for

MANY = 8
FAR = RunningLauncher(host="far", process=Identity(4711, 5, boot=1, space=1))


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT", 0.02)
    monkeypatch.chdir(tmp_path)


def seen(folder: Path) -> tuple[int, RunningLauncher | None]:
    found = heartbeat._look(folder)
    assert found is not None
    return found.number, found.launcher


def left(folder: Path, launcher: RunningLauncher = FAR, number: int = 0) -> None:
    """What a killed launcher leaves."""
    note_of(folder, number).write_text(json.dumps(asdict(launcher)))


@contextlib.contextmanager
def touched(path: Path) -> Iterator[None]:
    """As a launcher on another host does that nothing else is known of."""
    ended = threading.Event()

    def touch() -> None:
        while not ended.wait(0.02):
            os.utime(path)

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_run_whose_launcher_lives_elsewhere_is_refused(tmp_path: Path) -> None:
    with (
        beating("mine", tmp_path, FAR),
        pytest.raises(JobError, match=r"4711 on host far"),
        beating("mine", tmp_path, patience=60.0),
    ):
        pass


@pytest.mark.parametrize("enter", [attach, resume])
def test_neither_attach_nor_resume_takes_it_over(enter: object) -> None:
    Path("train.py").touch()
    spec = RunSpec(run="mine", script=["train.py"], workers=2)
    spec.folder.mkdir(parents=True)
    spec.save()
    with beating("mine", spec.folder, FAR), pytest.raises(JobError, match=r"4711 on host far"):
        assert callable(enter) and enter(spec)


def test_one_that_was_killed_is_taken_over(tmp_path: Path) -> None:
    with beating("mine", tmp_path, FAR):
        pass
    with beating("mine", tmp_path, patience=60.0):  # it has ended, and there is nothing to wait for
        assert seen(tmp_path) == (1, RunningLauncher())
    left(tmp_path, number=2)
    with beating("mine", tmp_path, patience=0.1):
        assert seen(tmp_path) == (3, RunningLauncher())
        assert [path.name for path in tmp_path.iterdir()] == ["launcher.0003.json"]


def test_of_launchers_on_many_hosts_that_look_at_once_one_takes_over(tmp_path: Path) -> None:
    """Whether the last one was killed or has ended: all have found that out before the first one goes on."""
    waited, everybody = heartbeat._wait_for_end, threading.Barrier(MANY)

    def wait_for_end(*words: Any) -> int:
        number = waited(*words)
        everybody.wait(60)
        return number

    def take(host: int) -> str:
        try:
            with beating("mine", tmp_path, replace(FAR, host=str(host)), patience=0.1):
                everybody.wait(60)  # for those that are refused
                return str(host)
        except JobError as error:
            everybody.wait(60)
            return str(error)

    left(tmp_path)
    with patch.object(heartbeat, "_wait_for_end", wait_for_end), ThreadPoolExecutor(MANY) as threads:
        for number in range(1, 6):
            winner, *others = sorted(threads.map(take, range(MANY)), key=len)
            assert seen(tmp_path) == (number, replace(FAR, host=winner, ended=True))
            assert {*others} == {
                f"run 'mine' is already managed by process 4711 on host {winner}: stop that launcher first"
            }
            assert len([*tmp_path.iterdir()]) == 1


def test_one_that_looked_long_ago_takes_over_from_nobody(tmp_path: Path) -> None:
    """Since then another has taken over, has been killed in its turn and followed by a third one, which is alive."""
    left(tmp_path, replace(FAR, host="third"), number=7)
    with patch.object(heartbeat, "_wait_for_end", return_value=5), pytest.raises(JobError, match="on host third"):
        beating("mine", tmp_path).__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["launcher.0007.json"]


def test_one_that_is_followed_while_others_wait_is_not_taken_over(tmp_path: Path) -> None:
    """Its follower has another note, which must count although the first one's is not touched any more."""
    left(tmp_path)
    timer = threading.Timer(0.1, left, [tmp_path, replace(FAR, host="next"), 1])
    timer.start()
    with pytest.raises(JobError, match="on host next"):
        beating("mine", tmp_path, patience=60.0).__enter__()
    timer.join()


def test_a_note_is_never_empty_where_the_disk_is_full_and_comes_back(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "full")
    with patch.object(os, "fsync", side_effect=full):
        second = beating("mine", tmp_path, FAR)
        second.__enter__()
        time.sleep(0.1)
        assert [*tmp_path.iterdir()] == []
    wait_for(lambda: heartbeat._look(tmp_path) is not None)
    with patch.object(os, "fsync", side_effect=full), pytest.raises(JobError, match="on host far"):
        beating("mine", tmp_path, patience=60.0).__enter__()
    second.__exit__(None, None, None)


@pytest.mark.parametrize("damage", ["", "{", None])
def test_a_note_that_was_damaged_or_removed_is_written_again(tmp_path: Path, damage: str | None) -> None:
    with beating("mine", tmp_path, FAR):
        path = note_of(tmp_path, 0)
        if damage is None:
            path.unlink()
        else:
            path.write_text(damage)
        wait_for(lambda: path.exists() and seen(tmp_path) == (0, FAR))


def test_launchers_do_not_fight_over_a_note(tmp_path: Path) -> None:
    """One that was stopped for long finds that another one has taken over, and leaves its note as it is."""
    with beating("mine", tmp_path, FAR):
        left(tmp_path, replace(FAR, host="next"), number=1)
        note_of(tmp_path, 0).unlink()
        time.sleep(0.1)
        assert seen(tmp_path) == (1, replace(FAR, host="next")) and len([*tmp_path.iterdir()]) == 1
    assert seen(tmp_path) == (1, replace(FAR, host="next"))


def test_on_its_own_host_the_lock_tells(tmp_path: Path) -> None:
    with beating("mine", tmp_path), beating("mine", tmp_path, patience=60.0):
        pass


def test_where_hosts_show_the_same_processes_the_heartbeat_tells(tmp_path: Path) -> None:
    """Containers may share their processes and not /dev/shm, where the lock is."""
    left(tmp_path, RunningLauncher(host="neighbour", process=Identity.of(os.getppid())))
    with touched(note_of(tmp_path, 0)), pytest.raises(JobError, match="on host neighbour"):
        beating("mine", tmp_path, patience=60.0).__enter__()


@pytest.mark.parametrize("text", ["", "[]", '{"host": 3}', '{"process": {"number": "x"}}'])
def test_a_damaged_note_is_none(tmp_path: Path, text: str) -> None:
    note_of(tmp_path, 0).write_text(text)
    with beating("mine", tmp_path, patience=60.0):
        pass


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, 20))
def test_whatever_is_in_a_note_nobody_fails_on_it(tmp_path: Path, data: bytes, place: int, length: int) -> None:
    """Bytes of any kind, alone or in the middle of a note that was right."""
    whole = json.dumps(asdict(RunningLauncher())).encode()
    for text in (data, whole[:place] + data + whole[place + length :]):
        note_of(tmp_path, 0).write_bytes(text)
        heartbeat._wait_for_end("mine", tmp_path, 0.0, "")


def test_nobody_waits_for_a_pipe_in_its_place(tmp_path: Path) -> None:
    os.mkfifo(note_of(tmp_path, 0))
    with beating("mine", tmp_path, patience=60.0):
        pass
