"""The watch over tests: it sees what this test leaves, and nothing that others do."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshmend.base.processes import is_alive
from meshmend.job.shm import home
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
    wait_for(lambda: all(Path(f"/proc/{one}/cmdline").read_bytes() for one in (lost, bare.pid)))  # a moment later
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
    monkeypatch.setattr(home, "MEMORY", tmp_path)
    (home.home() / "old").mkdir()
    watch = Watch()
    with watch.marking():
        child = subprocess.Popen(["true", "--name", "ours"])
        child.wait()
    ours = [f"meshmend-{child.pid}-testbed-x", f"meshmend-doctor-{child.pid}-x"]
    others = [f"meshmend-{os.getppid()}-testbed-x", "meshmend-65534", home.home().name]
    our_runs, other_runs = ["ours", f"a-{child.pid}", f"0101-000000-{child.pid}"], ["other", "ours-1", "0101-000000-1"]
    for name in ours + others:
        (tmp_path / name).mkdir(exist_ok=True)
    for name in our_runs + other_runs:
        (home.home() / name).mkdir()
    assert sorted(Path(line).name for line in watch.remains(patience=0)) == sorted(ours + our_runs)
    assert {path.name for path in tmp_path.iterdir()} == set(others)
    assert {path.name for path in home.home().iterdir()} == {"old", *other_runs}


def test_segments_of_an_mpi_without_mpirun_are_named_and_removed() -> None:
    """It leaves them also when it ends well."""
    watch = Watch()
    with watch.marking():
        subprocess.run([sys.executable, "-c", "from mpi4py import MPI"], check=True, timeout=300)
    said = watch.remains(patience=0)
    assert len(said) == 1 and "sm_segment." in said[0] and not watch.segments.exists()
    assert watch.remains() == []


def test_namespaces_are_named_and_removed() -> None:
    need_testbed()
    watch = Watch()
    namespaces.ip([f"netns add {namespaces.space_of('lost')}"])
    assert watch.remains(patience=0) == [str(namespaces.RUN / namespaces.space_of("lost"))]
    assert namespaces.existing(os.getpid()) == []
