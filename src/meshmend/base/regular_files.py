"""Opens files that others may have made: only regular ones, so that nobody waits for a pipe or reads a device."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def opened(path: Path | str) -> BinaryIO:
    """A file, to read; an `OSError` if there is none, or something else in its place."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(file).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(file, "rb")
    os.close(file)
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(errno.EINVAL, "it is not a file")


def read_at_most(file: BinaryIO, most: int) -> bytes:
    """The rest of a file, cut off after so many bytes; a buffer of that size is made only if the file is so large."""
    here = file.tell()
    size = file.seek(0, os.SEEK_END) - here
    file.seek(here)
    return file.read(max(0, min(size, most)))
