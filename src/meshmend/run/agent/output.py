"""A worker's output: cut into lines as it comes, and packed away when it becomes long.

Long lines come in pieces, and progress bars once per second.

A progress bar draws over itself: it returns to the beginning of its line (a carriage return) and writes its next state.
Where many workers print, one below the other, only whole lines can be shown, so the newest state of each second is.

What has been shown is packed in pieces of the same size, and its room on the disk given back:

    worker-0.0000.log.gz  worker-0.0001.log.gz    the first pieces
    worker-0.log                                  what came since, after a hole of their length

The worker has the file open and appends to it, so the file can be neither replaced nor cut without losing a line now
and then; a hole in it disturbs nobody. Both steps can be repeated, so a kill between them does no harm.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import gzip
import os
from pathlib import Path

PIECE = 1 << 20
"""Bytes read at once; a longer line is shown in pieces."""
BAR = 1.0
"""Seconds between two states of a progress bar."""
FULL = 16 << 20
"""Bytes that are packed at once; a multiple of the blocks of any file system."""
KEEP_SIZE, PUNCH_HOLE = 1, 2
"""Flags of `fallocate`."""


class Tail:
    """One worker's output."""

    def __init__(self) -> None:
        self._bar, self._shown = "", float("-inf")

    def cut(self, data: bytes, now: float, *, ended: bool) -> tuple[list[str], int]:
        """(lines, bytes used): the rest of the data has to come again. `ended`: there will be no more data."""
        end = data.rfind(b"\n") + 1
        lines = [text for line in data[:end].split(b"\n")[:-1] if (text := self._line(line)) is not None]
        rest = data[end:]
        if ended and rest:
            return [*lines, *filter(None, [self._line(rest)])], len(data)
        if b"\r" in rest:
            begin, state = _newest(rest)
            end += begin
            if state.strip() and state != self._bar and now - self._shown >= BAR:
                lines.append(state)
                self._bar, self._shown = state, now
        if not end and len(data) >= PIECE:
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            lines = [decoder.decode(data)]  # a character of several bytes is not cut in two
            end = len(data) - len(decoder.getstate()[0])
        return lines, end

    def _line(self, data: bytes) -> str | None:
        """A whole line; None for the last state of a progress bar if that has been shown."""
        if b"\r" not in data:
            return data.decode(errors="replace")
        text = _newest(data)[1]
        shown, self._bar = self._bar, ""
        return None if text and text == shown else text


def _newest(data: bytes) -> tuple[int, str]:
    """Where the newest state of a progress bar begins, and what it is."""
    data = data.rstrip(b"\r")
    begin = data.rfind(b"\r")
    return max(begin, 0), data[begin + 1 :].decode(errors="replace")


def pack_away(path: Path, shown: int) -> None:
    """Pack what has been shown of a long output; where the file system knows no holes, the file just grows."""
    with contextlib.suppress(OSError), path.open("r+b") as file:
        for number in range(os.lseek(file.fileno(), 0, os.SEEK_DATA) // FULL, shown // FULL):
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
