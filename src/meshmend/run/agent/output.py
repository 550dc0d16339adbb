"""A worker's output, read from its log as it arrives and cut into lines. A long log is compressed (base/log_files.py).

Long lines come in pieces, and progress bars once per second.

A progress bar draws over itself: it returns to the beginning of its line (a carriage return) and writes its next state.
The output of many workers can only be shown in whole lines, so the newest state is shown once per second.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import time
from pathlib import Path

from meshmend.base.clocks import PROGRESS_BAR
from meshmend.base.log_files import FULL, pack_away
from meshmend.job.shm.records import WritableAgentRecord

PIECE = 1 << 20
"""Bytes per read; a longer line is shown in pieces."""


class Output:
    """The log of one worker. How far it has been shown is in its agent's record, for another agent that takes over."""

    def __init__(self, own: WritableAgentRecord) -> None:
        self._own, self._tail = own, Tail()
        self._packed = 0
        """Pieces that have been compressed."""

    def read(self, path: Path, *, ended: bool) -> list[str]:
        """Return the next lines that it has printed; all of them once it has exited."""
        own = self._own
        own.shown = max(own.shown, 0)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_size > own.shown:
                return self._lines(path, ended=ended)
        return []

    def _lines(self, path: Path, *, ended: bool) -> list[str]:
        own, lines, more = self._own, list[str](), True
        with path.open("rb") as file:
            while more:
                file.seek(own.shown)
                data = file.read(PIECE)
                more = ended and len(data) == PIECE
                some, done = self._tail.cut(data, time.monotonic(), ended=ended and not more)
                own.shown += done
                lines += some
        if own.shown // FULL > self._packed:
            self._packed = own.shown // FULL
            pack_away(path, own.shown)
        return lines


class Tail:
    """Cuts what a worker prints into lines."""

    def __init__(self) -> None:
        self._bar, self._shown = "", float("-inf")

    def cut(self, data: bytes, now: float, *, ended: bool) -> tuple[list[str], int]:
        """Return (lines, bytes used); pass the unused data again next time. `ended`: there will be no more data."""
        end = data.rfind(b"\n") + 1
        lines = [text for line in data[:end].split(b"\n")[:-1] if (text := self._line(line)) is not None]
        rest = data[end:]
        if ended and rest:
            return [*lines, *filter(None, [self._line(rest)])], len(data)
        if b"\r" in rest:
            begin, state = _newest(rest)
            end += begin
            if state.strip() and state != self._bar and now - self._shown >= PROGRESS_BAR:
                lines.append(state)
                self._bar, self._shown = state, now
        if not end and len(data) >= PIECE:
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            lines = [decoder.decode(data)]  # does not split a character of several bytes
            end = len(data) - len(decoder.getstate()[0])
        return lines, end

    def _line(self, data: bytes) -> str | None:
        """Decode a whole line; None for the last state of a progress bar if that has been shown."""
        if b"\r" not in data:
            return data.decode(errors="replace")
        text = _newest(data)[1]
        shown, self._bar = self._bar, ""
        return None if text and text == shown else text


def _newest(data: bytes) -> tuple[int, str]:
    """Return where the newest state of a progress bar begins, and its text."""
    data = data.rstrip(b"\r")
    begin = data.rfind(b"\r")
    return max(begin, 0), data[begin + 1 :].decode(errors="replace")
