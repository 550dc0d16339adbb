"""The progress of a training run: a progress bar on a terminal, a few plain lines anywhere else."""

from __future__ import annotations

import sys
from types import TracebackType

from meshmend.base.terminal import Progress
from meshmend.base.units import plural

LINES = 5
"""How many lines there are without a terminal."""


class Screen:
    """The progress of one training run, with events printed above it."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._progress = Progress(stream=sys.stdout, lines=LINES)

    def __enter__(self) -> Screen:
        self._progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)

    def step(self, step: int, loss: float, workers: int) -> None:
        """A step is done."""
        text = f"loss {loss:<8.4f} {plural(workers, 'worker')}"
        self._progress(f"step {step + 1} of {self._steps}  {text}", step + 1, self._steps)

    def say(self, text: str) -> None:
        """Something has happened."""
        self._progress.say(text)
