"""A worker's output, cut into lines as they come: long ones in pieces, and of a progress bar now and then its state.

A bar draws over itself: it goes back to the begin of its line (a carriage return) and writes its next state there.
Where many workers print, one below the other, only a line can be shown, so of all states in a second the newest is.
"""

from __future__ import annotations

import codecs

PIECE = 1 << 20
"""Bytes taken at once; a line that is longer is shown in pieces."""
BAR = 1.0
"""Seconds between two states of a progress bar."""


class Tail:
    """One worker's output."""

    def __init__(self) -> None:
        self._bar, self._shown = "", float("-inf")

    def cut(self, data: bytes, now: float, *, ended: bool) -> tuple[list[str], int]:
        """(lines, how many bytes they took): the others come again with the next ones. `ended`: there are none."""
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
            lines = [decoder.decode(data)]  # a letter of several bytes is not cut in two
            end = len(data) - len(decoder.getstate()[0])
        return lines, end

    def _line(self, data: bytes) -> str | None:
        """A whole line; None for the last state of a bar that has been shown."""
        if b"\r" not in data:
            return data.decode(errors="replace")
        text = _newest(data)[1]
        shown, self._bar = self._bar, ""
        return None if text and text == shown else text


def _newest(data: bytes) -> tuple[int, str]:
    """Where the newest state of a bar begins, and what it is."""
    data = data.rstrip(b"\r")
    begin = data.rfind(b"\r")
    return max(begin, 0), data[begin + 1 :].decode(errors="replace")
