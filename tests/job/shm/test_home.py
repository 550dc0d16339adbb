"""The private folder of a user: nothing that others put in its place is used, and nothing of theirs is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from meshmend.errors import JobError, SegmentGone
from meshmend.job.shm import clean_stale, create_as_agent, enter, leave, manage, open_to_read, ranks_of, stale_runs
from meshmend.job.shm.home import LONGEST, folder_of, homes, require_name
from meshmend.job.shm.home import home as home_of
from tests.processes import DEADLINE

NOBODY = 65534
PLANTED = {
    "folder": "os.mkdir(name, 0o777); os.chmod(name, 0o777)",
    "file": "open(name, 'w').close()",
    "pipe": "os.mkfifo(name)",
    "link": "os.symlink('elsewhere', name)",
    "link to a folder": "os.mkdir('theirs', 0o777); os.chmod('theirs', 0o777); os.symlink('theirs', name)",
    "link to nothing": "os.symlink('/nowhere', name)",
    "run": (
        "os.mkdir(name, 0o777); os.chmod(name, 0o777); os.mkdir(name + '/mine', 0o777); "
        "open(name + '/mine/0.control', 'wb').write(open('control', 'rb').read())"
    ),
}


def as_another(memory: Path, code: str, name: str) -> None:
    """Do this as another user, in a folder that is reached without its parents."""
    if os.geteuid():
        pytest.skip("needs root, to act as another user")
    begin = f"import os, sys\nos.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\nname = sys.argv[1]\n"
    subprocess.run([sys.executable, "-c", begin + code, name], cwd=memory, check=True, timeout=DEADLINE)


@pytest.mark.parametrize("what", PLANTED)
def test_what_another_user_has_put_there_is_neither_used_nor_touched(home: Path, what: str) -> None:
    create_as_agent("mine", 0)
    (home.parent / "control").write_bytes((home / "mine" / "0.control").read_bytes())
    assert leave("mine")
    as_another(home.parent, PLANTED[what], home.name)
    before = os.lstat(home)
    with pytest.raises(SegmentGone):
        open_to_read("mine", 0)
    assert ranks_of("mine") == [] == stale_runs() == clean_stale()
    with manage("mine"):
        segment = create_as_agent("mine", 0)
        ours = segment.files.folder.parent
        assert ours.name.startswith(f"{home.name}.") and (ours.stat().st_mode & 0o777) == 0o700
        assert homes() == [ours] and folder_of("mine") == ours / "mine"
        for child in ("open_as_worker('mine', 0)", "open_as_courier('mine', 0)"):  # all processes agree
            code = "import sys, pathlib; from meshmend.job.shm import *; from meshmend.job.shm import home"
            line = [sys.executable, "-c", f"{code}\nhome.MEMORY = pathlib.Path(sys.argv[1]); {child}", str(home.parent)]
            subprocess.run(line, check=True, timeout=DEADLINE)
        os.unlink(home) if not home.is_dir() or home.is_symlink() else home.rename(home.with_name("away"))
        create_as_agent("mine", 1)  # also when the usual name is free again, and a new run takes it
        assert enter("other", make=True).parent in (home, ours)
        assert segment.files.folder == folder_of("mine") and ranks_of("mine") == [0, 1]
    assert before.st_uid == NOBODY
    assert leave("other")


def loosened(path: Path) -> None:
    path.mkdir(mode=0o700)
    path.chmod(0o720)


def linked(path: Path) -> None:
    path.with_name("real").mkdir(mode=0o700)
    path.symlink_to("real")


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo, linked, loosened])
def test_only_a_real_folder_that_is_closed_to_others_will_do(home: Path, make: Callable[[Path], None]) -> None:
    make(home)
    assert homes() == []
    made = home_of()
    assert made.name.startswith(f"{home.name}.") and homes() == [made] == [home_of()]


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o711])
def test_a_folder_that_others_could_only_look_into_is_closed(home: Path, mode: int) -> None:
    """Open MPI makes the folder of a world with all its parents, where it is on a restarted host before an agent."""
    (home / "mine" / "world-2").mkdir(parents=True)
    home.chmod(mode)
    assert home_of() == home and homes() == [home] and (home.stat().st_mode & 0o777) == 0o700
    assert enter("mine", make=True) == home / "mine"


def test_the_usual_folder_is_made_once(home: Path) -> None:
    assert homes() == [] and home_of() == home == home_of()
    assert homes() == [home] and (home.stat().st_mode & 0o777) == 0o700


def test_two_users_have_runs_of_one_name(home: Path) -> None:
    """A minute after one user's run began, every other user's ended in a PermissionError."""
    theirs = f"os.mkdir('meshmend-{NOBODY}', 0o700); os.mkdir('meshmend-{NOBODY}/mine', 0o700)"
    as_another(home.parent, theirs, "")
    create_as_agent("mine", 0)
    assert stale_runs() == clean_stale() == [] and ranks_of("mine") == [0]
    assert leave("mine")
    assert os.listdir(home.parent / f"meshmend-{NOBODY}") == ["mine"]


def test_no_memory_is_one_sentence(home: Path) -> None:
    home.parent.rename(home.parent.with_name("away"))
    with pytest.raises(JobError, match=str(home.parent)):
        home_of()
    assert homes() == [] and clean_stale() == []


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/", "a\0b", "~1-2", "x" * (LONGEST + 1), "ü" * 200])
def test_a_name_that_cannot_be_a_folders_is_refused(home: Path, name: str) -> None:
    for use in (require_name, folder_of, lambda name: enter(name, make=True), lambda name: create_as_agent(name, 0)):
        with pytest.raises(JobError) as error:
            use(name)
        assert not isinstance(error.value, SegmentGone) and len(str(error.value)) < 300
    require_name("x" * LONGEST)
    assert not home.exists()
