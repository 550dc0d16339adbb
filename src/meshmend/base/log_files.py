"""Text files that other processes append to for weeks: their old parts are compressed in pieces of the same size.

    worker-0.0000.log.gz  worker-0.0001.log.gz    the first pieces
    worker-0.log                                  everything since then, after a hole of their length

The writer has the file open, so it can be neither replaced nor truncated without losing a line now and then; a hole in
it does no harm. Both steps can be repeated, so a kill between them does no harm either.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import os
from pathlib import Path

FULL = 16 << 20
"""Bytes per compressed piece; a multiple of the block size of any file system."""
KEEP_SIZE, PUNCH_HOLE = 1, 2
"""Flags of `fallocate`."""


def pack_away(path: Path, until: int) -> None:
    """Pack the first part of a long file, up to there; where the file system knows no holes, the file just grows."""
    with contextlib.suppress(OSError), path.open("r+b") as file:
        for number in range(os.lseek(file.fileno(), 0, os.SEEK_DATA) // FULL, until // FULL):
            packed = path.with_name(f"{path.stem}.{number:04}{path.suffix}.gz")
            fresh = packed.with_name(f".{packed.name}.new")
            fresh.write_bytes(gzip.compress(os.pread(file.fileno(), FULL, number * FULL), 3))
            os.replace(fresh, packed)
            if not _give_back(file.fileno(), number * FULL, FULL):
                packed.unlink()
                return


def _give_back(file: int, begin: int, size: int) -> bool:
    """Make a hole in a file; whether that was possible."""
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return int(fallocate(file, PUNCH_HOLE | KEEP_SIZE, begin, size)) == 0
