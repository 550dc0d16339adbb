"""The progress of a training run: a progress bar on a terminal, a few plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from types import TracebackType

LINES = 5
"""How many lines there are without a terminal."""


class Screen:
    """The progress of one training run, with events printed above it."""

    def __init__(self, steps: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._steps, self._begin, self._told = steps, time.monotonic(), 0
        self._plain = not sys.stdout.isatty()
        self._bar = Progress(
            TextColumn("  step {task.completed} of {task.total}"),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=Console(highlight=False, markup=False),
            disable=self._plain,
        )
        self._task = self._bar.add_task("starting", total=steps)

    def __enter__(self) -> Screen:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def step(self, step: int, loss: float, workers: int) -> None:
        """A step is done."""
        text = f"loss {loss:<8.4f} {workers} worker{'s' * (workers != 1)}"
        self._bar.update(self._task, completed=step + 1, description=text)
        if self._plain and (step + 1) * LINES // self._steps > self._told:
            self._told = (step + 1) * LINES // self._steps
            self.say(f"step {step + 1} of {self._steps}  {text}  {time.monotonic() - self._begin:.0f} s")

    def say(self, text: str) -> None:
        """Something has happened."""
        if self._plain:
            print(f"  {text}", flush=True)
        else:
            self._bar.console.print(f"  {text}", soft_wrap=True)
