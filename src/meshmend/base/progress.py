"""How far long work is: one line on a terminal's error stream, written over as it goes; nothing anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType

Tell = Callable[[str, int, int], None]
"""What is being done, how many are done, of how many."""
WIDE = 24
EVERY = 0.1
"""Seconds between two drawings."""


class Progress:
    """`with Progress() as progress: progress("holes", 3, 10)`."""

    def __init__(self, show: bool | None = None) -> None:
        self._show = sys.stderr.isatty() if show is None else show
        self._begin = self._last = time.monotonic()
        self._drawn = False

    def __call__(self, what: str, done: int, of: int) -> None:
        """So many of them are done."""
        now = time.monotonic()
        if not self._show or now - self._last < EVERY:
            return
        self._last = now
        full = WIDE * done // max(1, of)
        bar = "█" * full + "·" * (WIDE - full)
        self.say(f"{what:<28} {bar} {done:,} of {of:,}  {now - self._begin:.0f} s")

    def say(self, doing: str) -> None:
        """What is being done, where it cannot be counted."""
        if self._show:
            self._drawn = True
            print(f"\r\033[K  {doing}", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


SILENT = Progress(show=False)
