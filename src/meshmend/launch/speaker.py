"""What a run prints: workers' lines with their number, what meshmend does, and each exception once."""

from __future__ import annotations

import sys
from typing import Any


class Speaker:
    """One run's output."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}

    def line(self, seat: int, text: str) -> None:
        """A line that a worker has printed."""
        sys.stdout.write(f"[{seat}] {text}\n")
        sys.stdout.flush()

    def say(self, text: str) -> None:
        """A sentence of the launcher's own."""
        sys.stdout.flush()
        print(f"meshmend: {text}", file=sys.stderr, flush=True)

    def raised(self, seat: int, error: dict[str, Any]) -> None:
        """A worker's exception: whole for the first that meets it, a line for the others."""
        text = error["error"]
        if error["mistake"]:
            if text not in self._told:
                self.say(text)
        elif text in self._told:
            self.say(f"worker {seat} raised the same in step {error['step']} as worker {self._told[text]}")
        else:
            self.say(f"worker {seat} raised in step {error['step']}:\n{error['trace'].rstrip()}")
        self._told.setdefault(text, seat)


def join_words(seats: list[int]) -> str:
    """Who joins, in words."""
    if len(seats) == 1:
        return f"worker {seats[0]} joins"
    return f"workers {', '.join(map(str, seats[:-1]))} and {seats[-1]} join"
