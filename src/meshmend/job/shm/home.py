"""The private folder of a user in shared memory, and in it one folder per run.

    /dev/shm/meshmend-1000/          private to this user: mode 0700
        lr-0.1/                      a run, while one of its processes is alive on this host
            lock                     who is present (presence.py)
            launcher                 who manages it
            0.control, 0.buffers …   the files of rank 0 (files.py)
            world-7/                 Open MPI's session files of world 7

Anyone may write to /dev/shm, so anything may have the usual name, by accident or on purpose. A folder is used only if
it is a real folder that this user owns and no other user may enter. If the usual name is taken, a folder with a random
suffix is used instead: meshmend-1000.k2x94a. Every process searches all folders of its user for its run, so all of them
find the same one, whatever happens to the usual name meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from meshmend.errors import JobError, SegmentGone

MEMORY = Path("/dev/shm")
LONGEST = 255
"""Bytes in the name of a file."""


def homes() -> list[Path]:
    """Return the private folders of this user that exist, the usual one first."""
    try:
        names = sorted(os.listdir(MEMORY))
    except OSError:
        return []
    usual = _usual()
    ours = (MEMORY / name for name in names if name == usual or name.startswith(f"{usual}."))
    return [path for path in ours if _is_private(path)]


def home() -> Path:
    """The one in which new runs begin; made if there is none."""
    try:
        try:
            os.mkdir(MEMORY / _usual(), 0o700)
        except FileExistsError:
            _close(MEMORY / _usual())
        if not homes():
            tempfile.mkdtemp(prefix=f"{_usual()}.", dir=MEMORY)
        return homes()[0]
    except (OSError, IndexError) as error:
        why = error.strerror if isinstance(error, OSError) else "a folder made there is not this user's"
        raise JobError(f"{MEMORY} cannot be used ({why}): mount a writable tmpfs there") from None


def require_usual() -> None:
    """Refuse a host where the usual name is taken: mpirun uses one path for all hosts, whatever is there."""
    if home().name != _usual():
        raise JobError(
            f"{MEMORY / _usual()} on {os.uname().nodename} is not a private folder of this user, and a run on several "
            "hosts needs that name: remove it there"
        )


def folder_of(run: str) -> Path:
    """The folder of a run that has processes on this host; `SegmentGone` if there is none."""
    require_name(run)
    for path in homes():
        if _is_folder(path / run):
            return path / run
    raise SegmentGone(f"run {run!r} has no shared memory on this host: it has ended, or runs elsewhere")


def runs() -> list[Path]:
    """The folders of all runs of this user."""
    found = []
    for path in homes():
        with contextlib.suppress(OSError):
            found += [path / name for name in sorted(os.listdir(path)) if _is_folder(path / name)]
    return found


def require_name(run: str) -> None:
    """Refuse a name that cannot be a folder's."""
    if run in ("", ".", "..") or not {"/", "\0", "~"}.isdisjoint(run) or len(os.fsencode(run)) > LONGEST:
        raise JobError(
            f"{run[:40]!r} cannot be the name of a run: use at most {LONGEST} letters, digits, dots, dashes and "
            "underscores"
        )


def free() -> int:
    """Unused bytes of shared memory."""
    place = os.statvfs(MEMORY)
    return place.f_bavail * place.f_frsize


def too_small(size: int, error: OSError | None = None) -> str:
    """The rest of a sentence about something that needs this many bytes of shared memory."""
    return f"needs {size / 1e6:.1f} MB of {no_room(error)}"


def no_room(error: OSError | None = None) -> str:
    """The same where nobody knows how much it is."""
    place = os.statvfs(MEMORY)
    why = f" ({os.strerror(error.errno)})" if error is not None and error.errno else ""
    return (
        f"shared memory, but {MEMORY} ({place.f_blocks * place.f_frsize / 1e6:.1f} MB) "
        f"has no room for that{why}: enlarge it (in a container: --shm-size) or free some"
    )


def _usual() -> str:
    return f"meshmend-{os.geteuid()}"


def _is_private(path: Path) -> bool:
    """Whether it is a folder that this user owns and no other user may enter."""
    try:
        about = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not stat.S_IMODE(about.st_mode) & 0o077


def _close(path: Path) -> None:
    """Close a folder of this user to others, if no other user could write to it.

    Open MPI creates the folder of its world with all parents, readable by all, if it comes up on a host before an agent
    does: on a host that has just rebooted.
    """
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            about = os.fstat(folder)
            if about.st_uid == os.geteuid() and not stat.S_IMODE(about.st_mode) & 0o022:
                os.fchmod(folder, 0o700)
        finally:
            os.close(folder)


def _is_folder(path: Path) -> bool:
    """Whether it is a folder, and not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False
