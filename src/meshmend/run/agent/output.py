"""A worker's output, cut into lines as it comes. When it becomes long, it is packed away (base/packing.py).

Long lines come in pieces, and progress bars once per second.

A progress bar draws over itself: it returns to the beginning of its line (a carriage return) and writes its next state.
Where many workers print, one below the other, only whole lines can be shown, so the newest state of each second is.
"""

from __future__ import annotations

import codecs

PIECE = 1 << 20
"""Bytes read at once; a longer line is shown in pieces."""
BAR = 1.0
"""Seconds between two states of a progress bar."""


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
