"""What a worker writes down of its steps: the ledger, and a tidy line a step from the first worker."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from meshmend.base.env import Settings
from meshmend.job.data.lanes import Lanes
from meshmend.telemetry.events import Committed, Event, Log, Opened, Skipped


class StepLedger:
    """One worker's; outside `meshmend run` it only prints."""

    def __init__(self, settings: Settings | None) -> None:
        self._settings = settings
        self.log = None if settings is None else Log(settings.folder, f"worker-{settings.rank}")
        self._seat, self._life = (0, 0) if settings is None else (settings.rank, settings.attempt)
        self._last = time.perf_counter()
        self._pending: Committed | None = None

    def opened(self, step: int, lanes: Lanes, reduction: str) -> None:
        """From this step on, this worker takes part."""
        self._last = time.perf_counter()
        if self._settings is not None:
            data = {"size": lanes.size, "batch": lanes.batch, "lanes": lanes.lanes, "seed": lanes.seed}
            self._write(Opened(rank=self._seat, attempt=self._life, step=step, reduction=reduction, **data))

    def committed(
        self,
        step: int,
        by: Sequence[int],
        active: Iterable[int],
        digest: int,
        metrics: Mapping[str, float],
        first: bool,
    ) -> None:
        """A step is done; it is written down when the others are known to have the same state after it."""
        now = time.perf_counter()
        if self.log is not None:
            values = dict(metrics)
            self._pending = Committed(
                rank=self._seat, attempt=self._life, step=step, by=_runs(by), digest=f"{digest:012x}", metrics=values
            )
        if metrics and first:
            numbers = "  ".join(f"{name} {value:.6g}" for name, value in metrics.items())
            workers = len(list(active))
            crowd = f"{workers} worker{'s' if workers > 1 else ''}"
            print(f"step {step}  {numbers}  {crowd}  {1000 * (now - self._last):.0f} ms", flush=True)
        self._last = now

    @property
    def pending(self) -> dict[str, Any] | None:
        """The step that is not yet written down, for a newcomer."""
        return None if self._pending is None else asdict(self._pending)

    def take_over(self, pending: dict[str, Any] | None) -> None:
        """A newcomer writes the last step down as those do that did it."""
        if pending is not None and self.log is not None:
            self._pending = Committed(**{**pending, "rank": self._seat})

    def confirm(self) -> None:
        """Write the last step down."""
        if self._pending is not None:
            self._write(self._pending)
            self._pending = None

    def skipped(self, step: int, by: Sequence[int], why: str, first: bool) -> None:
        """A step's sum was not finite, and its batch is left out."""
        self._write(Skipped(rank=self._seat, attempt=self._life, step=step, by=_runs(by), why=why))
        if first:
            print(f"step {step} is skipped: {why}", flush=True)

    def _write(self, event: Event) -> None:
        if self.log is not None:
            self.log.write(event)


def _runs(by: Sequence[int]) -> list[list[int]]:
    """[0, 0, 1, 1, 1] as [[0, 2], [1, 3]]."""
    return [[rank, len(list(lanes))] for rank, lanes in groupby(by)]
