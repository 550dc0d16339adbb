"""How long the memory of a run stays, who manages the run, and what is cleaned up: asked of locks, not of numbers."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.queues import Queue
from pathlib import Path

import pytest

from meshmend.base.processes import Identity
from meshmend.errors import JobError, SegmentGone
from meshmend.job.reduction.base import WireFormat
from meshmend.job.reduction.float32 import Float32
from meshmend.job.shm import AgentSegment, create_as_agent, open_as_agent, open_as_worker, world_folder
from meshmend.job.shm.buffers import make_buffers
from meshmend.job.shm.files import ranks_of
from meshmend.job.shm.inspect import members
from meshmend.job.shm.presence import LAUNCHER, LOCK, clean_stale, enter, leave, manage, stale_runs, was_removed
from tests.processes import DEADLINE, wait_for

BEGIN = """
import pathlib, sys, time
from meshmend.job.shm import *
from meshmend.job.shm import home
home.MEMORY = pathlib.Path(sys.argv[1])
"""


def command(memory: Path, code: str) -> list[str]:
    return [sys.executable, "-c", BEGIN + code, str(memory)]


def run(memory: Path, code: str, *before: str) -> str:
    """What a process prints that does this."""
    line = [*before, *command(memory, code)]
    return subprocess.run(line, capture_output=True, text=True, check=True, timeout=DEADLINE).stdout


@contextmanager
def running(memory: Path, code: str) -> Iterator[subprocess.Popen[str]]:
    """A process that does this and stays."""
    line = command(memory, f"{code}\nprint('ready', flush=True)\ntime.sleep(600)")
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def left(memory: Path, name: str) -> None:
    """What a killed run leaves."""
    with running(memory, f"create_as_agent({name!r}, 0); world_folder({name!r}, 1)"):
        pass


def test_a_run_is_as_old_as_its_oldest_process(home: Path) -> None:
    left(home.parent, "dead")
    making, working = "create_as_agent('worked', 0)", "open_as_worker('worked', 0)"
    with running(home.parent, making) as agent, running(home.parent, working):
        agent.kill()
        agent.wait()
        assert stale_runs() == ["dead"] and clean_stale() == ["dead"]  # a worker waits for the next launcher
        assert ranks_of("worked") == [0]
    assert clean_stale() == ["worked"]
    assert not home.exists()


def test_the_last_one_that_leaves_removes_everything(home: Path) -> None:
    create_as_agent("mine", 0)
    world_folder("mine", 1)
    with running(home.parent, "open_as_worker('mine', 0)"):
        assert not leave("mine")
        assert open_as_agent("mine", 0).files.folder.is_dir()
    assert leave("mine") and leave("mine")
    assert not home.exists(), "the user's own folder goes with the last run"
    with pytest.raises(SegmentGone):
        open_as_worker("mine", 0)
    assert not home.exists()


@pytest.mark.parametrize(("one", "other"), [("lr", "lr-0.1"), ("a", "a-1"), ("a-b", "a"), ("0", "0.0")])
def test_a_run_is_not_taken_for_another_whose_name_begins_alike(home: Path, one: str, other: str) -> None:
    """While `lr-0.1` lived, `lr` deleted all of its memory."""
    for run in (one, other):
        create_as_agent(run, 0)
        world_folder(run, 1)
    there = sorted(os.listdir(home / other))
    assert ranks_of(one) == ranks_of(other) == [0]
    create_as_agent(one, 0)
    assert sorted(os.listdir(home / other)) == there
    assert leave(one)
    assert (ranks_of(one), sorted(os.listdir(home / other))) == ([], there)


def test_a_process_notices_that_its_run_was_removed(home: Path) -> None:
    run, folder = "gone", home / "gone"
    assert enter(run, make=True) == folder
    assert not was_removed(run)
    shutil.rmtree(folder)
    assert was_removed(run)
    with pytest.raises(JobError, match="removed"):
        enter(run, make=True)
    assert not folder.exists(), "it must not look as if nothing had happened"
    leave(run)
    assert enter(run, make=True) == folder and not was_removed(run)
    leave(run)


def test_another_container_with_the_same_memory_removes_nothing(home: Path) -> None:
    """There, the numbers of our processes are nobody's or somebody else's."""
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("needs root, for a PID namespace")
    create_as_agent("mine", 0)
    left(home.parent, "dead")
    inside = ["unshare", "--pid", "--fork", "--mount-proc"]
    assert run(home.parent, "print(clean_stale(), len(ranks_of('mine')))", *inside) == "['dead'] 1\n"
    code = "try:\n    manage('mine').__enter__()\nexcept ValueError as error:\n    print(error)"
    with manage("mine"):
        assert "another container" in run(home.parent, code, *inside)
    assert not (home / "mine").exists()


def test_what_we_did_not_make_stays_and_is_never_fatal(home: Path, tmp_path: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "foreign").mkdir()
    (home / "foreign" / "precious").touch()
    (home / "file").touch()
    (home / "link").symlink_to(tmp_path)
    (home / "odd").mkdir()
    (home / "odd" / LOCK).mkdir()
    (home / "empty").mkdir()  # whoever made it was killed at once
    assert stale_runs() == [] and clean_stale() == ["empty"]
    assert sorted(path.name for path in home.iterdir()) == ["file", "foreign", "link", "odd"]
    assert (home / "foreign" / "precious").exists() and tmp_path.is_dir()


def test_what_a_killed_cleaner_has_begun_is_finished(home: Path) -> None:
    left(home.parent, "dead")
    (home / "dead").rename(home / "~1-2")
    (home / "~1-2" / LOCK).unlink()
    assert stale_runs() == [] and clean_stale() == [] and list(home.iterdir()) == []


def test_a_run_has_one_launcher(home: Path) -> None:
    with running(home.parent, "it = manage('mine'); it.__enter__()") as first:
        with pytest.raises(JobError, match=f"process {first.pid} .* or another"), manage("mine", "or another"):
            pytest.fail("two launchers")
        who = Identity.of(first.pid)
        first.kill()
        wait_for(lambda: who.exiting)
        with manage("mine"):  # also while the kernel still ends the other
            assert (home / "mine" / LAUNCHER).exists()
    assert not (home / "mine").exists()


def test_the_number_of_a_dead_launcher_is_not_mistaken_for_one(home: Path) -> None:
    """The number may be another process's by now; then `--attach` refused."""
    enter("mine", make=True)
    (home / "mine" / LAUNCHER).write_bytes(os.getpid().to_bytes(8, "little") + bytes(24))
    with manage("mine"):
        pass


def _compete(memory: Path, barrier: threading.Barrier, results: Queue[int]) -> None:
    from meshmend.job.shm import home as homes

    homes.MEMORY = memory
    won = 0
    for _ in range(40):
        barrier.wait(DEADLINE)
        try:
            with manage("mine"):
                create_as_agent("mine", 0)
                won += 1
                barrier.wait(DEADLINE)
        except JobError:
            barrier.wait(DEADLINE)
        clean_stale()
    results.put(won)


def test_of_launchers_that_begin_at_once_one_does(home: Path) -> None:
    """While dead runs are cleaned up, too; in 40 rounds of three."""
    context = multiprocessing.get_context("spawn")  # this process may have threads of JAX
    barrier, results = context.Barrier(3), context.Queue()
    players = [context.Process(target=_compete, args=(home.parent, barrier, results)) for _ in range(3)]
    for player in players:
        player.start()
    won = [results.get(timeout=DEADLINE) for _ in players]
    for player in players:
        player.join(DEADLINE)
    assert sum(won) == 40
    clean_stale()
    assert not home.exists()


@pytest.mark.usefixtures("home")
def test_locks_are_not_inherited_by_programs() -> None:
    create_as_agent("mine", 0)
    with subprocess.Popen(["sleep", "600"], close_fds=False) as child:
        assert leave("mine")
        child.kill()


def test_killed_ones_are_given_time_to_end(home: Path) -> None:
    """A worker that another agent started is nobody's child here: it may hold its lock after it was killed."""
    segment = create_as_agent("mine", 0)
    with running(home.parent, "open_as_worker('mine', 0)") as worker:
        segment.files.remove()
        ending = threading.Timer(0.1, worker.kill)
        ending.start()
        assert leave("mine")
        ending.join()


def test_memory_is_for_its_user_alone(home: Path) -> None:
    segment: AgentSegment = create_as_agent("mine", 0)
    worker = open_as_worker("mine", 0)
    make_buffers(worker.files, worker.worker, WireFormat(Float32, 8), 0)
    worker.files.write_state([b"state"])
    worker.files.put_given([b"given"])
    worker.files.write_error(0, "", "", mistake=False)
    found = list(segment.files.folder.iterdir())
    assert len(found) == 8 and {path.stat().st_mode & 0o777 for path in found} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (home, home / "mine", world_folder("mine", 1))} == {0o700}


def test_a_rank_is_seen_whole_or_not_at_all(home: Path) -> None:
    """An onlooker, such as `meshmend chaos`, while agents make the memory of new workers."""
    create_as_agent("mine", 0)
    code = """
while True:
    for rank in range(3):
        create_as_agent("mine", rank).agent.attempt = 1
    """
    seen, deadline = 0, time.monotonic() + DEADLINE
    with subprocess.Popen(command(home.parent, code)) as maker:
        try:
            wait_for(lambda: len(ranks_of("mine")) == 3)
            while seen < 2000 and time.monotonic() < deadline:
                seen += len(members("mine"))
        finally:
            maker.kill()  # it makes them for ever, and leaving this block waits for its end
    assert seen >= 2000


@pytest.mark.parametrize("room", ["size=4096", *(f"nr_inodes={number}" for number in range(2, 7))])
def test_no_room_for_a_run_is_one_sentence_and_leaves_nothing(tmp_path: Path, room: str) -> None:
    """Somebody else has filled /dev/shm, or made so many files there that there can be no other."""
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("needs root, for a small file system of its own")
    code = """
import os
try:
    with open(sys.argv[1] + "/theirs", "wb", buffering=0) as theirs:
        for _ in range(16):  # not until it is full: where only files are scarce, it has half of the memory
            theirs.write(bytes(4096))
except OSError:
    pass
try:
    with manage("mine"):
        print("room")
except ValueError as error:
    print(str(error).count(sys.argv[1]))
print(os.listdir(sys.argv[1]))
"""
    mounted = f'mount -t tmpfs -o {room} tmpfs {tmp_path} && exec "$@"'
    said = run(tmp_path, code, "unshare", "-m", "sh", "-c", mounted, "sh").splitlines()
    assert said[0] in ("1", "room") and said[1] == "['theirs']", said
    assert said[0] == "1" or room == "nr_inodes=6"
