"""Small files that readers, on whichever hosts, see whole or not at all, whenever their writer is killed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
"""Errors of file systems without hard links, such as FAT and some that are made with FUSE."""


def create(path: Path, text: str) -> bool:
    """Write a file unless there is one; of several processes, on whichever hosts, one succeeds."""
    with _written_beside(path, text) as new:
        try:
            os.link(new, path)
        except FileExistsError:
            return _same(new, path)  # NFS may lose the answer of a link that was made, and ask for it again
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            return _create_in_place(path, text)
    return True


def replace(path: Path, text: str) -> None:
    """Write a file in place of an older one, if there is one."""
    with _written_beside(path, text) as new:
        os.replace(new, path)


@contextlib.contextmanager
def _written_beside(path: Path, text: str) -> Iterator[Path]:
    """A file with this text next to the path, under a name that no other process uses."""
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    try:
        with new.open("x") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # otherwise a host that crashes may leave the name without the text
        yield new
    finally:
        with contextlib.suppress(OSError):
            new.unlink()


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _create_in_place(path: Path, text: str) -> bool:
    """The same where there are no hard links; there, a writer that is killed at this moment leaves half a file."""
    try:
        file = path.open("x")
    except FileExistsError:
        return False
    try:
        with file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    return True
