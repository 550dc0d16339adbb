"""Which processes of a run are on this host: a lock that each of them holds, and one that its launcher holds.

The kernel releases a lock when its holder dies, however it dies, and sees holders in all containers that share this
memory. So the lock tells whether a run is alive, never process numbers:

    lock       shared by agents, workers and the launcher; a process that gets it exclusively knows that all are gone
    launcher   held exclusively by the launcher; contains its process number

The last process that leaves removes the folder of a run, or else the user's next meshmend command does. It renames the
folder first, with the lock held exclusively: a process that arrives at that moment finds another file under the lock's
name, and tries again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from meshmend.base.clocks import AGENT_POLL, EXIT_WAIT, LOCK_POLL
from meshmend.base.processes import Identity
from meshmend.errors import JobError, SegmentGone
from meshmend.job.shm.files import ranks_of
from meshmend.job.shm.home import folder_of, home, runs

LOCK, LAUNCHER = "lock", "launcher"
REMOVED = "~"
"""Begins the name of a folder that is being removed; no run has it in its name."""
_WHO = "=4q"

_present: dict[Path, int] = {}
"""The locks that this process holds, by folder. They are closed in programs that it executes."""


def enter(run: str, *, make: bool = False) -> Path:
    """Be a process of this run, until it leaves or ends; the run's folder, made if it is missing and `make` is set."""
    if was_removed(run):
        raise JobError(f"the shared memory of run {run!r} was removed while it was in use")
    deadline = time.monotonic() + EXIT_WAIT
    while time.monotonic() < deadline:
        try:
            folder = folder_of(run)
        except SegmentGone:
            if not make:
                raise
            folder = home() / run
            _mkdir(folder)
        if folder in _present:
            return folder
        with contextlib.suppress(FileNotFoundError):  # another process has just removed the folder
            try:
                file = _open(folder / LOCK)
            except JobError:
                _drop(folder)
                raise
            if _try(file, fcntl.LOCK_SH) and _is(file, folder / LOCK):
                _present[folder] = file
                return folder
            os.close(file)
        time.sleep(LOCK_POLL)
    raise JobError(f"{folder / LOCK} is held by a process that is removing run {run!r}: continue or kill that process")


def leave(run: str, patience: float = EXIT_WAIT) -> bool:
    """Stop being present. The last process removes the run's folder; return whether it is gone.

    If no rank has memory any more, the remaining processes have been killed: give them time to exit.
    """
    for folder in [one for one in _present if one.name == run]:
        os.close(_present.pop(folder))
    try:
        folder = folder_of(run)
    except SegmentGone:
        return True
    deadline = time.monotonic() + patience
    while not (gone := _remove(folder)) and not ranks_of(run) and time.monotonic() < deadline:
        time.sleep(AGENT_POLL)
    return gone


def was_removed(run: str) -> bool:
    """Whether the run's folder was removed although this process is present: by no process of ours, which would wait.

    systemd does that when a user's last session ends (`RemoveIPC=yes`), and so do cleaners of temporary files.
    """
    return any(folder.name == run and not _is(file, folder / LOCK) for folder, file in _present.items())


@contextlib.contextmanager
def manage(run: str, advice: str = "stop that launcher first") -> Iterator[None]:
    """Be the launcher of this run on this host; `JobError` if another process is, with what to do then."""
    folder, patience = enter(run, make=True), 0.0
    try:
        file = _open(folder / LAUNCHER)
    except JobError:
        leave(run, patience)
        raise
    try:
        if not _take(file):
            holder = _holder(file)
            who = f"process {holder.number}" if holder.visible else "a process in another container"
            raise JobError(f"run {run!r} is already managed by {who} on this host: {advice}")
        patience = EXIT_WAIT
        try:
            os.pwrite(file, struct.pack(_WHO, *vars(Identity.of(os.getpid())).values()), 0)
        except OSError as error:
            raise _no_room(folder / LAUNCHER, error) from None
        yield
    finally:
        leave(run, patience)
        os.close(file)


def stale_runs() -> list[str]:
    """Runs of this user that left something behind although all of their processes are dead."""
    return [folder.name for folder in runs() if not folder.name.startswith(REMOVED) and _is_left(folder)]


def clean_stale() -> list[str]:
    """Remove what dead runs of this user left behind; their names. What cannot be removed stays, without a word."""
    removed = []
    for folder in runs():
        if folder.name.startswith(REMOVED):
            shutil.rmtree(folder, ignore_errors=True)  # the process that began with that was killed, or is still at it
        elif _remove(folder):
            removed.append(folder.name)
    return removed


def _take(file: int) -> bool:
    """Take the launcher's lock; a launcher that has just been killed holds it until the kernel has cleaned it up."""
    deadline = time.monotonic() + EXIT_WAIT
    while not _try(file, fcntl.LOCK_EX):
        if not _holder(file).exiting or time.monotonic() > deadline:
            return False
        time.sleep(AGENT_POLL)
    return True


def _holder(file: int) -> Identity:
    said = os.pread(file, struct.calcsize(_WHO), 0)
    return Identity(*struct.unpack(_WHO, said)) if len(said) == struct.calcsize(_WHO) else Identity()


def _is_left(folder: Path) -> bool:
    """Whether all processes of a run are dead."""
    try:
        file = _open(folder / LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        return _try(file, fcntl.LOCK_EX)
    finally:
        os.close(file)


def _remove(folder: Path) -> bool:
    """Remove a run's folder, unless one of its processes lives or it is not what we make; whether it is gone."""
    try:
        file = _open(folder / LOCK, os.O_RDWR)
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()  # if it is empty, its creator was killed immediately, or tries again
        return not folder.exists()
    try:
        if not _try(file, fcntl.LOCK_EX) or not _is(file, folder / LOCK):
            return False
        doomed = folder.with_name(f"{REMOVED}{os.getpid()}-{time.monotonic_ns()}")
        os.rename(folder, doomed)
    except OSError:
        return False
    finally:
        os.close(file)
    shutil.rmtree(doomed, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()  # unless the user has other runs
    return True


def _open(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM):
            raise
        raise _no_room(path, error) from None


def _no_room(path: Path, error: OSError) -> JobError:
    return JobError(f"{path} cannot be made ({error.strerror}): free some shared memory")


def _drop(folder: Path) -> None:
    """Remove what is empty of a folder that was just made."""
    with contextlib.suppress(OSError):
        folder.rmdir()
        folder.parent.rmdir()


def _mkdir(folder: Path) -> None:
    try:
        os.mkdir(folder, 0o700)
    except (FileExistsError, FileNotFoundError):
        pass  # another process has created it, or just removed the user's folder with the last run in it
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.parent.rmdir()  # unless the user has other runs
        raise _no_room(folder, error) from None


def _try(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is(file: int, path: Path) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except OSError:
        return False
