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
    if stat.S_ISREG(os.fstat(file).st_mode):
        return os.fdopen(file, "rb")
    os.close(file)
    raise OSError(errno.EINVAL, "it is not a file")
