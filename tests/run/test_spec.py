"""What a run was started with: saved, read again, and refused where another version has written it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshmend.errors import FormatError, JobError, MeshmendError
from meshmend.run import entry
from meshmend.run.checks import check
from meshmend.run.clusters.hosts import Host
from meshmend.run.spec import VERSION, RunSpec, load_saved, load_spec
from meshmend.telemetry import FORMAT


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


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_a_run_folder_of_another_format_is_refused_and_both_versions_named(other: int) -> None:
    saved(format=other, version="9.8.7")
    with pytest.raises(FormatError) as refused:
        load_spec("mine")
    said = str(refused.value)
    assert f"format {other}" in said and f"format {FORMAT}" in said and "9.8.7" in said and VERSION in said
    assert "start a new run" in said and "\n" not in said


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
    ],
)
def test_options_that_do_not_go_together_are_one_sentence(options: dict[str, object], names: list[str]) -> None:
    with pytest.raises(JobError) as refused:
        RunSpec(**{"run": "mine", "script": ["train.py"], "workers": 3, **options})  # type: ignore[arg-type]
    assert all(name in str(refused.value) for name in names) and "\n" not in str(refused.value)


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
