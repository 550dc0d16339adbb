"""The watch over tests: it sees what this test leaves, and nothing that others do."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshmend.base.processes import is_alive
from meshmend.testbed import namespaces
from tests import leaks
from tests.leaks import VARIABLE, Watch
from tests.processes import wait_for
from tests.testbed.beds import need_testbed

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def orphan(**environment: str) -> int:
    """A process whose parent is gone."""
    code = f"import subprocess; print(subprocess.Popen({SLEEP!r}, stdout=subprocess.DEVNULL).pid)"
    made = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True, timeout=60
    )
    return int(made.stdout)


def test_processes_are_named_and_killed_whoever_their_parent_is() -> None:
    watch = Watch()
    with watch.marking():
        lost, bare = orphan(), subprocess.Popen(SLEEP, env={})
    assert watch.running().keys() == {lost, bare.pid}
    said = watch.remains(patience=0)
    assert len(said) == 2 and all("time.sleep(600)" in line for line in said)
    bare.wait(60)
    wait_for(lambda: not is_alive(lost))
    assert watch.remains() == []


def test_what_others_do_is_not_ours() -> None:
    watch = Watch()
    other = orphan(**{VARIABLE: "another"})
    try:
        assert watch.running() == {} and watch.remains() == []
    finally:
        os.kill(other, 9)


def test_processes_that_a_traceback_holds_warn_nobody_later() -> None:
    """Warnings are errors here, also those of collected objects."""
    process = subprocess.Popen(SLEEP, stdout=subprocess.PIPE)
    leaks.close_processes()
    assert process.returncode == -9
    del process
    gc.collect()


def test_what_is_about_to_end_may_end() -> None:
    watch = Watch()
    with watch.marking(), subprocess.Popen(["sleep", "0.5"]):
        assert watch.remains() == []


def test_shared_memory_is_named_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "MEMORY", tmp_path)
    (tmp_path / "meshmend-old-0.control").touch()
    watch = Watch()
    with watch.marking():
        child = subprocess.Popen(["true", "--name", "ours"])
        child.wait()
    ours = [
        "meshmend-ours-0.control",
        "meshmend-ours-mpi",
        f"meshmend-{child.pid}-testbed-x",
        f"meshmend-a-{child.pid}-0.bulk",
    ]
    others = ["meshmend-other-0.control", f"meshmend-{os.getppid()}-testbed-x", "meshmend-0101-000000-1-0.control"]
    for name in ours + others:
        (tmp_path / name).mkdir() if name.endswith(("mpi", "x")) else (tmp_path / name).touch()
    assert sorted(Path(line).name for line in watch.remains(patience=0)) == sorted(ours)
    assert {path.name for path in tmp_path.iterdir()} == {"meshmend-old-0.control", *others}


def test_namespaces_are_named_and_removed() -> None:
    need_testbed()
    watch = Watch()
    namespaces.ip([f"netns add {namespaces.space_of('lost')}"])
    assert watch.remains(patience=0) == [str(namespaces.RUN / namespaces.space_of("lost"))]
    assert namespaces.existing(os.getpid()) == []
