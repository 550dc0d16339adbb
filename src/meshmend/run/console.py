"""What a run prints: workers' lines with their number, what meshmend does, and each exception once."""

from __future__ import annotations

import sys
from typing import Any


class Console:
    """One run's output."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}

    def line(self, rank: int, text: str) -> None:
        """A line that a worker has printed."""
        sys.stdout.write(f"[{rank}] {text}\n")
        sys.stdout.flush()

    def say(self, text: str) -> None:
        """A sentence of the launcher's own."""
        sys.stdout.flush()
        print(f"meshmend: {text}", file=sys.stderr, flush=True)

    def raised(self, rank: int, error: dict[str, Any]) -> None:
        """A worker's exception: whole for the first that meets it, a line for the others."""
        text = error["error"]
        if error["mistake"]:
            if text not in self._told:
                self.say(text)
        elif text in self._told:
            self.say(f"worker {rank} raised the same in step {error['step']} as worker {self._told[text]}")
        else:
            self.say(f"worker {rank} raised in step {error['step']}:\n{error['trace'].rstrip()}")
        self._told.setdefault(text, rank)


def join_words(ranks: list[int]) -> str:
    """Who joins, in words."""
    if len(ranks) == 1:
        return f"worker {ranks[0]} joins"
    return f"workers {', '.join(map(str, ranks[:-1]))} and {ranks[-1]} join"
