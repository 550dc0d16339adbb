"""The lines that the first worker prints about its steps: at most one per second by default.

Such as `step 1200 of 5000  loss 0.31  4 workers  2.1 ms  30,400 samples/s  input stall 0.4 %  8 s left`; the input
stall is the share of the time that this worker waited for samples.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from meshmend.base.clocks import PROGRESS_LINE
from meshmend.base.units import duration_text, percent, plural, read_duration
from meshmend.errors import JobError

NEVER = "never"


def seconds_between(text: str) -> float:
    """What `--log-every` was given: 0 (every step), 5s, never; empty is the usual time."""
    if text in ("", "0"):
        return PROGRESS_LINE if not text else 0.0
    return float("inf") if text == NEVER else read_duration(text, "--log-every", JobError)


class StepLines:
    """When a step gets a line, and what the line says: times are means over the steps since the line before."""

    def __init__(self, every: str = "") -> None:
        self._every = seconds_between(every)
        self.until: int | None = None
        """How many steps there are, if the loop has said so."""
        self._told = 0.0
        self.sums = ""
        """Where sums take place, if that is worth saying: the first line says so, and any line after a change."""
        self._said = ""
        self.begin(0)

    def begin(self, step: int) -> None:
        """The next step to come; what was before does not count."""
        self._since, self._from, self._stall = time.perf_counter(), step, 0.0

    def stalled(self, seconds: float) -> None:
        """Add the time that this worker waited for input in a step."""
        self._stall += seconds

    def line(self, step: int, metrics: Mapping[str, float], workers: int, batch: int) -> str | None:
        """The line for a step that is done, or None if it is too soon for one; the last step always has one."""
        now, last = time.perf_counter(), self.until is not None and step + 1 >= self.until
        if self._every == float("inf") or (now - self._told < self._every and not last):
            return None
        each = (now - self._since) / max(step + 1 - self._from, 1)
        of = f" of {self.until}" if self.until is not None else ""
        numbers = "".join(f"{name} {value:.6g}  " for name, value in metrics.items())
        left = max(self.until - step - 1, 0) * each if self.until is not None else 0.0
        rest = f"  {duration_text(left)} left" if left else ""
        stall = percent(min(1.0, self._stall / max(now - self._since, 1e-9)), 1)
        self._told = now
        self.begin(step + 1)
        if self.sums != self._said:
            rest, self._said = f"{rest}  {self.sums}", self.sums
        rate = f"{batch / each:,.0f} samples/s" if each else ""
        pace = f"{duration_text(each)}  {rate}  input stall {stall}"
        return f"step {step}{of}  {numbers}{plural(workers, 'worker')}  {pace}{rest}"
