"""A worker's output, cut into lines as it arrives. A long log is compressed (base/log_files.py).

Long lines come in pieces, and progress bars once per second.

A progress bar draws over itself: it returns to the beginning of its line (a carriage return) and writes its next state.
The output of many workers can only be shown in whole lines, so the newest state is shown once per second.
"""

from __future__ import annotations

import codecs

from meshmend.base.clocks import PROGRESS_BAR

PIECE = 1 << 20
"""Bytes per read; a longer line is shown in pieces."""


class Tail:
    """One worker's output."""

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
