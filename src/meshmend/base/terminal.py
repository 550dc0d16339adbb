"""What is printed on a terminal: tables, and the progress of long work.

A table has columns under heads of one or more lines, and notes below. Progress is one line on a terminal, redrawn in
place; elsewhere a few plain lines, or nothing:

    with Progress() as progress:
        progress("solving holes", 3, 10)       # drawn at most ten times a second
        progress("calibrating BERT")           # work that cannot be counted
        progress.say("worker 2 died")          # a line that stays, above the one that is redrawn
"""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Protocol, TextIO

from meshmend.base.clocks import REDRAW

WIDTH = 118
"""Columns of a terminal that notes are wrapped to."""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, gap: str = "  ") -> str:
    """Cells under their heads, the first `left` columns aligned left and the others right.

    A newline in a head begins its next line; shorter heads are aligned to the bottom.
    """
    cells = [list(row) for row in rows]
    high = max(head.count("\n") for head in heads) + 1
    titles = [[""] * (high - 1 - head.count("\n")) + head.split("\n") for head in heads]
    widths = [max(map(len, (*title, *column))) for title, *column in zip(titles, *cells, strict=True)]
    lines = [[title[part] for title in titles] for part in range(high)]
    return "\n".join(_line(line, widths, left, gap) for line in [*lines, *cells])


def _line(cells: Sequence[str], widths: Sequence[int], left: int, gap: str) -> str:
    return gap.join(
        cell.ljust(width) if index < left else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ).rstrip()


def notes(*texts: str, width: int = WIDTH) -> str:
    """Sentences below a table, one bullet each, with no line break before a percent sign."""
    kept = (f"* {text}".replace(" %", "\N{NO-BREAK SPACE}%") for text in texts)
    filled = (textwrap.fill(text, width, subsequent_indent="  ", break_on_hyphens=False) for text in kept)
    return "\n".join(filled).replace("\N{NO-BREAK SPACE}", " ")


WIDE = 24


class Tell(Protocol):
    """Receives the progress of the work."""

    def __call__(self, what: str, done: int = 0, of: int = 0, /) -> None:
        """What is being done, how much of it is done, and how much there is; 0 if that cannot be counted."""


class Progress:
    """One piece of work. `lines` is how often it is reported if there is no terminal to redraw a line on."""

    def __init__(self, show: bool | None = None, *, stream: TextIO | None = None, lines: int = 0) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._show = self._stream.isatty() if show is None else show
        self._lines, self._printed = lines, 0
        self._begin, self._last = time.monotonic(), 0.0
        self._drawn = ""

    def __call__(self, what: str, done: int = 0, of: int = 0, /) -> None:
        """So much of it is done."""
        now = time.monotonic()
        if self._show and (not of or now - self._last >= REDRAW):
            self._last = now
            self._draw(f"{what:<28} {_bar(done, of)}  {now - self._begin:.0f} s" if of else f"{what} …")
        elif not self._show and of and done * self._lines // of > self._printed:
            self._printed = done * self._lines // of
            self.say(f"{what}  {now - self._begin:.0f} s")

    def say(self, text: str) -> None:
        """Print a line that stays."""
        drawn = self._drawn
        self._clear()
        print(f"  {text}", file=self._stream, flush=True)
        if drawn:
            self._draw(drawn)

    def _draw(self, text: str) -> None:
        self._drawn = text
        print(f"\r\033[K  {text}", end="", file=self._stream, flush=True)

    def _clear(self) -> None:
        if self._drawn:
            print("\r\033[K", end="", file=self._stream, flush=True)
            self._drawn = ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clear()


def _bar(done: int, of: int) -> str:
    full = WIDE * done // of
    return f"{'█' * full}{'·' * (WIDE - full)} {done:,} of {of:,}"


SILENT = Progress(show=False)
"""Reports nothing."""
