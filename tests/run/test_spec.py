"""What a run was started with: saved, read again, and refused where another version has written it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshmend import cli
from meshmend.errors import FormatError, JobError, MeshmendError
from meshmend.run import entry
from meshmend.run.checks import check
from meshmend.run.clusters.hosts import Host
from meshmend.run.spec import VERSION, RunSpec, load_saved, load_spec
from meshmend.telemetry import FORMAT, Began, Ended, Epoch, Log
from meshmend.telemetry.folder import OLDEST
from tests.strategies import damaged, damaged_bytes, modest


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MESHMEND_RUNS", raising=False)
    (tmp_path / "train.py").touch()
    return tmp_path


def saved(**changes: object) -> RunSpec:
    """A run that was started, with these changes in its run.json."""
    spec = RunSpec(run="mine", script=["train.py", "--epochs", "3"], workers=3, hosts=[Host("a", 2), Host("b", 1)])
    spec.save()
    path = Path("runs/mine/run.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return spec


def test_a_spec_is_read_as_it_was_saved() -> None:
    spec = saved()
    assert load_spec("mine") == spec
    assert load_saved("mine").version == VERSION


@pytest.mark.parametrize("other", [OLDEST - 1, FORMAT + 1])
def test_a_run_folder_of_another_format_is_refused_and_both_versions_named(other: int) -> None:
    saved(format=other, version="9.8.7")
    with pytest.raises(FormatError) as refused:
        load_spec("mine")
    said = str(refused.value)
    assert f"format {other}" in said and f"formats {OLDEST} to {FORMAT}" in said and "9.8.7" in said
    assert "start a new run" in said and "\n" not in said


@pytest.mark.parametrize("every", ["soon", "0", "5 minutes"])
def test_checkpoints_at_no_interval_are_refused_before_any_worker_is_started(every: str) -> None:
    with pytest.raises(JobError, match="checkpoints every"):
        RunSpec(run="mine", script=["train.py"], workers=1, hosts=[], every=every)


def test_attaching_with_another_version_is_refused_and_both_versions_named() -> None:
    spec = saved(version="9.8.7")
    with pytest.raises(JobError) as refused:
        entry.attach(spec)
    said = str(refused.value)
    assert "9.8.7" in said and VERSION in said and "--resume mine" in said and "\n" not in said


def test_a_run_of_another_version_and_the_same_format_can_be_resumed() -> None:
    saved(version="9.8.7")
    assert load_spec("mine", workers=2).workers == 2


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"script": []}, ["script"]),
        ({"workers": 0}, ["0 workers"]),
        ({"spares": -1}, ["-1 spares"]),
        ({"least": 4}, ["4", "3 workers"]),
        ({"least": 0}, ["0", "3 workers"]),
        ({"on_failure": "pray"}, ["pray", "replace, spare, shrink, restart, checkpoint"]),
        ({"on_failure": "spare"}, ["spare", "--spares 1"]),
        ({"mesh": "1x3", "spares": 1}, ["--mesh", "--spares 1"]),
        ({"run": "a/b"}, ["'a/b'"]),
        ({"run": "-a"}, ["'-a'"]),
        ({"run": ""}, ["''"]),
        ({"run": ".."}, ["'..'"]),
        ({"run": "."}, ["'.'"]),
        ({"run": "a\nb"}, ["'a"]),
        ({"run": "a" * 300}, ["100 letters"]),
        ({"run": "é" * 60}, ["100 letters"]),
        ({"workers": 10**9}, ["1000000000 workers"]),
        ({"hosts": [Host("a", 10**9)]}, ["3 workers"]),
    ],
)
def test_options_that_do_not_go_together_are_one_sentence(options: dict[str, object], names: list[str]) -> None:
    with pytest.raises(JobError) as refused:
        RunSpec(**{"run": "mine", "script": ["train.py"], "workers": 3, **options})  # type: ignore[arg-type]
    assert all(name in str(refused.value) for name in names) and "\n" not in str(refused.value)


def test_a_run_of_the_format_before_is_read() -> None:
    saved(format=OLDEST)
    assert load_spec("mine").workers == 3


@pytest.mark.parametrize("run", ["..", ".", "a" * 300, "x/" + "a" * 300, "a b", "a\x00b", "x/a\x00b", "\udc80"])
@pytest.mark.parametrize("words", [["audit"], ["run", "--resume"], ["run", "--attach"], ["chaos"]])
def test_a_run_that_cannot_be_is_one_sentence(words: list[str], run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*words, run]) == 2
    said = capsys.readouterr().err
    assert said.startswith("meshmend: ") and said.count("\n") == 1


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_description_is_a_sentence_or_a_spec(data: st.DataObject) -> None:
    spec = saved()
    path = Path("runs/mine/run.json")
    good = json.loads(path.read_text())
    if data.draw(st.booleans()):
        path.write_bytes(data.draw(damaged_bytes(json.dumps(good).encode())))
    else:
        path.write_text(json.dumps(data.draw(damaged(good))))
    with modest():
        try:
            found = load_spec("mine")
            check(found)
        except MeshmendError as error:
            assert "\n" not in str(error)
        else:
            assert found.run == spec.run and isinstance(found.workers, int)


def test_a_run_whose_clock_was_set_back_is_not_taken_for_done(capsys: pytest.CaptureFixture[str]) -> None:
    """Attempt 0 was done; attempt 1, with another script, was killed. The clock had been set back in between."""
    spec = saved()
    log = Log(spec.folder, "launcher")
    for event in (
        Began(time=2000.0, epoch=Epoch(0), workers=3, spares=0, on_failure="replace"),
        Ended(time=2001.0, epoch=Epoch(0), status=0),
        Began(time=1000.0, epoch=Epoch(1), workers=3, spares=0, on_failure="replace"),
    ):
        log.write(event)
    with pytest.raises(Reached), patch.object(entry, "require_tolerance", side_effect=Reached):
        entry.resume(spec)
    assert "done" not in capsys.readouterr().out


class Reached(Exception):
    """A run would be resumed."""


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"script": ["python3", "train.py"]}, ["'python3'"]),
        ({"script": ["nowhere.py"]}, ["'nowhere.py'"]),
        ({"script": ["."]}, ["'.'", "__main__.py"]),
        ({"mesh": "2x3"}, ["2x3", "6 live chips", "3 workers", "-n 6"]),
        ({"mesh": "2by2"}, ["'2by2'"]),
        ({"mesh": "1x3", "algorithm": "ring"}, ["ring"]),
    ],
)
def test_what_cannot_be_run_is_one_sentence(options: dict[str, object], names: list[str]) -> None:
    """A spec can be made without looking at files or planning; a run cannot be started."""
    spec = RunSpec(**{"run": "mine", "script": ["train.py"], "workers": 3, **options})  # type: ignore[arg-type]
    for begin in (check, entry.launch, entry.resume, entry.attach):
        with pytest.raises(MeshmendError) as refused:
            begin(spec)
        assert all(name in str(refused.value) for name in names) and "\n" not in str(refused.value)


def test_an_added_host_changes_no_rank_of_the_others() -> None:
    hosts = [Host("a", 2), Host("b", 1)]
    before = RunSpec(run="mine", script=["train.py"], workers=3, spares=2, hosts=hosts)
    after = replace(before, added=[Host("c", 2)])
    assert [*after.host_of] == [*before.host_of, "c", "c"]
    assert (after.members, after.ranks, after.room) == (5, 7, before.room)
    anew = after.without_additions()
    assert (anew.members, anew.ranks, len(anew.host_of)) == (5, 7, 7) and not anew.added
    assert before.without_additions() == before


KILLED_WHEN_IT_CLAIMS = """
import resource, signal
from meshmend.run.spec import RunSpec
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
RunSpec(run="mine", script=["train.py"], workers=3).claim()
"""


def test_a_launcher_that_is_killed_while_it_claims_a_name_does_not_use_it_up() -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED_WHEN_IT_CLAIMS], timeout=300)
    assert killed.returncode == -signal.SIGXFSZ
    spec = RunSpec(run="mine", script=["train.py"], workers=3, hosts=[])
    assert spec.claim() and load_spec("mine") == spec


def test_numbers_that_are_given_anew_are_of_all_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    hosts, added = [Host("a", 2), Host("b", 2)], [Host("c", 2)]
    RunSpec(run="mine", script=["train.py"], workers=4, hosts=hosts, added=added).save()
    assert load_spec("mine").members == 6
    assert load_spec("mine", workers=5).members == 5
    assert [host.name for host in load_spec("mine", workers=5).places] == ["a", "b", "c"]
    assert load_spec("mine", workers=1, hosts=[Host("z", 1)]).places == (Host("z", 1),)
