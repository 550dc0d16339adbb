"""The file of a cache: found by all workers of a host, made by the first, removed by the last.

A run's caches are found in its private folder of shared memory: the file itself, or a link to it in the folder that the
user chose. Every process that uses a file holds a lock on it, which the kernel releases however the process ends; so a
file that can be locked exclusively is unused, and the next cache in that folder removes it. With plain `python`, a
cache is a file without a name, gone with its process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
import weakref
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from meshmend.base.units import plural, size_text
from meshmend.errors import JobError

MAGIC = int.from_bytes(b"MMCACHE1", "little")
HEAD = 64
"""Bytes before the index."""
PREFIX = "meshmend-cache-"


@dataclass(frozen=True)
class CacheHome:
    """Where caches of this process are."""

    run: Path | None = None
    """The run's private folder on this host; None alone."""
    memory: Path = Path("/dev/shm")
    """Where memory can be shared."""


@dataclass
class CacheFile:
    """Open the file for `count` samples of about `size` bytes each, in at most `room` bytes; `like` describes them."""

    like: int
    count: int
    room: int
    size: int
    _file: int = field(default=-1, init=False)
    _link: Path | None = field(default=None, init=False)

    def open(self, name: str, folder: Path | None, home: CacheHome) -> int:
        """The file of this name, made if there is none."""
        if home.run is None:
            self._file = self._made(folder or home.memory, None)[0]
            weakref.finalize(self, os.close, self._file)
            return self._file
        link = home.run / f"cache-{name}"
        while not (self._join(link) or self._begin(link, name, folder, home.run)):
            pass
        self._link = link
        weakref.finalize(self, os.close, self._file)
        head = np.frombuffer(os.pread(self._file, HEAD, 0), np.int64).tolist()
        if head[:4] != [MAGIC, self.like, self.count, self.room]:
            raise JobError(
                f"the cache {name} was made by another worker with a different size, or for samples of a different "
                "type; all workers must build the same data"
            )
        return self._file

    def close(self) -> None:
        """Use it no longer; the last one removes it."""
        link, self._link = self._link, None
        if link is None:
            return
        with contextlib.suppress(OSError):
            real = Path(os.path.realpath(link))
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the shared one is given up, whether or not
            if _is(self._file, link):
                link.unlink()
                real.unlink(missing_ok=True)
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def _join(self, link: Path) -> bool:
        """Use the existing file."""
        with contextlib.suppress(FileNotFoundError):
            file = os.open(link, os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(file, fcntl.LOCK_SH)
            with contextlib.suppress(FileNotFoundError):
                if _is(file, link):
                    self._file = file
                    return True
            os.close(file)
        return False

    def _begin(self, link: Path, name: str, folder: Path | None, run: Path) -> bool:
        """Create a file under this name; False if another process was quicker."""
        if link.is_symlink() and not link.exists():
            link.unlink(missing_ok=True)  # it was unused, so another run has removed it
        if folder is not None:
            remove_unused(folder)
        file, path = self._made(folder or run, name)
        try:
            if folder is None:
                os.link(path, link)
                os.unlink(path)
            else:
                os.symlink(os.path.abspath(path), link)
        except FileExistsError:
            os.close(file)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return False
        self._file = file
        return True

    def _made(self, where: Path, name: str | None) -> tuple[int, str]:
        """Create a file with a head and an empty index; without a name, no other process can find it."""
        index = HEAD + 8 * self.count
        if index + self.size > self.room:
            raise JobError(
                f"a cache of {size_text(self.room)} is too small for the index of {plural(self.count, 'sample')} and a "
                f"single sample; give it at least {size_text(2 * (index + self.size))}"
            )
        try:
            place = os.statvfs(where)
            need, free = min(self.room, index + self.count * self.size), place.f_bavail * place.f_frsize
            if need > free:
                raise JobError(
                    f"a cache of {size_text(need)} was requested, but {where} has only {size_text(free)} free; request "
                    "less, or pass folder= on a disk with enough room"
                )
            file, path = tempfile.mkstemp(prefix=f"{PREFIX}{name or 'alone'}-", dir=where)
            if name is None:
                os.unlink(path)
            fcntl.flock(file, fcntl.LOCK_SH)
            os.posix_fallocate(file, 0, index)
            os.ftruncate(file, self.room)
        except OSError as error:
            raise JobError(
                f"a cache of {size_text(self.room)} cannot be made in {where} ({error.strerror}); pass another folder="
            ) from None
        head = np.array([MAGIC, self.like, self.count, self.room, index, index, 0, 0], np.int64)
        os.pwrite(file, head.tobytes(), 0)
        return file, path


def remove_unused(folder: Path) -> None:
    """Remove this user's caches from a folder whose processes were all killed."""
    for path in folder.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found = os.fstat(file)
                if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
                    path.unlink(missing_ok=True)
            finally:
                os.close(file)


def _is(file: int, path: Path) -> bool:
    """Whether an open file still has this name."""
    return os.path.samestat(os.fstat(file), os.stat(path))
