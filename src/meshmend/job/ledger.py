"""What a worker records of its steps: its lines of the ledger and, from the first worker, printed lines."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import isfinite
from typing import Any

from meshmend.base.env import Settings, log_every
from meshmend.job.data.lanes import Lanes
from meshmend.job.progress import StepLines
from meshmend.job.state.digest import Later
from meshmend.telemetry import (
    Committed,
    Epoch,
    Evaluated,
    Event,
    Log,
    Opened,
    Patience,
    SingleCopies,
    Skipped,
    always,
    parse,
)


@dataclass
class PendingStep:
    """A step that is done, and not recorded yet."""

    epoch: Epoch
    rank: int
    step: int
    by: Sequence[Sequence[int]]
    """Which rank computed each lane, for each sum of the step."""
    workers: int
    digest: Later[int]
    metrics: Mapping[str, float | Later[float]]
    first: bool
    stall: float = 0.0
    """Seconds that this worker waited for input."""
    said: bool = False
    time: float = field(default_factory=time.time)
    """When it was done: it is recorded a step later."""

    def numbers(self) -> dict[str, float]:
        """The metrics, once they are known."""
        return {name: one.value() if isinstance(one, Later) else one for name, one in self.metrics.items()}

    def event(self) -> Committed:
        """The line of the ledger."""
        digest = f"{self.digest.value():012x}"
        return Committed(
            time=self.time, epoch=self.epoch, rank=self.rank, step=self.step, by=_runs(self.by[0]), digest=digest,
            metrics=self.numbers(), stall=round(self.stall, 6), more=[*map(_runs, self.by[1:])],
        )  # fmt: skip


class StepLedger:
    """One worker's records; outside `meshmend run` it only prints. Every call gives the epoch of the last round."""

    def __init__(self, settings: Settings | None) -> None:
        self._settings = settings
        self.log = None if settings is None else Log(settings.folder, f"worker-{settings.rank}")
        self._rank = 0 if settings is None else settings.rank
        self.epoch = Epoch(0 if settings is None else settings.attempt)
        """The last epoch that this worker has recorded something in."""
        self._batch = 0
        self._strange = False
        """Whether a metric was NaN or Inf: the worker says so once."""
        self.progress = StepLines(log_every() if settings is None else settings.log_every)
        """Which steps are printed."""
        self._pending: PendingStep | Committed | None = None

    def opened(self, epoch: Epoch, step: int, lanes: Lanes, reduction: str, job: int) -> None:
        """From this step on, this worker takes part."""
        self.epoch, self._batch = epoch, lanes.batch
        self.progress.begin(step)
        if self._settings is not None:
            self._write(
                Opened(
                    epoch=epoch, rank=self._rank, step=step, reduction=reduction, job=job, size=lanes.size,
                    batch=lanes.batch, lanes=lanes.lanes, seed=lanes.seed, in_order=lanes.in_order,
                )
            )  # fmt: skip

    def committed(
        self,
        epoch: Epoch,
        step: int,
        by: Sequence[Sequence[int]],
        active: Iterable[int],
        digest: Later[int],
        metrics: Mapping[str, float | Later[float]],
        first: bool,
        stall: float = 0.0,
    ) -> None:
        """A step is done; it is recorded once the other workers are known to have the same state after it.

        Metrics that a device is still computing are not waited for: such a step is printed when it is recorded.
        """
        self.epoch = epoch
        pending = PendingStep(epoch, self._rank, step, by, len(list(active)), digest, metrics, first, stall)
        self.progress.stalled(stall)
        if not any(isinstance(value, Later) for value in metrics.values()):
            self._say(pending)
        self._pending = pending

    def _say(self, step: PendingStep) -> None:
        """Print a step, if it is time for that and this worker is the first; say once that a metric is NaN or Inf."""
        if step.said:
            return
        step.said, metrics = True, step.numbers()
        strange = [name for name, value in metrics.items() if not isfinite(value)]
        if strange and step.first and not self._strange:
            print(
                f"step {step.step}: {strange[0]} is {metrics[strange[0]]}, and training continues with it: with "
                "mm.Job(nonfinite='error') the run stops there, with nonfinite='skip' such steps are left out",
                flush=True,
            )
        self._strange = self._strange or bool(strange)
        told = bool(metrics) or self._settings is not None  # plain python adds nothing to what a script prints
        if step.first and told:
            line = self.progress.line(step.step, metrics, step.workers, self._batch)
            if line is not None:
                print(line, flush=True)

    @property
    def pending(self) -> dict[str, Any] | None:
        """The step that is not recorded yet, for a worker that joins."""
        pending = self._pending  # another thread may ask
        if isinstance(pending, PendingStep):
            pending = None if self.log is None else pending.event()
        return None if pending is None else pending.values()

    def take_over(self, pending: dict[str, Any] | None) -> None:
        """A worker that joins records the last step, as the workers do that did it."""
        if pending is not None and self.log is not None:
            line = parse(pending)
            assert isinstance(line, Committed)
            self._pending = replace(line, rank=self._rank, stall=0.0)

    def confirm(self) -> None:
        """Record the last step."""
        pending = self._pending
        if isinstance(pending, PendingStep):
            self._say(pending)
            pending = None if self.log is None else pending.event()
        try:
            if pending is not None:
                self._write(pending)
        finally:  # an error leaves it in the log, which has given up waiting
            self._pending = None
        if self.log is not None and self.log.error is not None:  # the run is halted
            print(f"the last steps are not in the ledger: {self.log.error}", flush=True)

    def evaluated(
        self, epoch: Epoch, step: int, last_round: int, size: int, chunk: int, by: Sequence[int], digest: int
    ) -> None:
        """An evaluation is done: these ranks have computed the chunks, and this is the digest of the result."""
        self.epoch = epoch
        self._write(
            Evaluated(
                epoch=epoch, rank=self._rank, step=step, round=last_round, size=size, chunk=chunk, by=_runs(by),
                digest=f"{digest:012x}",
            )
        )  # fmt: skip

    def single_copies(self, epoch: Epoch, round: int, slices: int, of: int) -> None:
        """From this step on, so many slices of the embedding tables have one copy alone."""
        self._write(SingleCopies(epoch=epoch, rank=self._rank, round=round, slices=slices, of=of))

    def skipped(self, epoch: Epoch, step: int, by: Sequence[int], why: str, first: bool) -> None:
        """A step's sum was not finite, and its batch is left out."""
        self.epoch = epoch
        self._write(Skipped(epoch=epoch, rank=self._rank, step=step, by=_runs(by), why=why))
        if first:
            print(f"step {step} is skipped: {why}", flush=True)

    def waits(self) -> AbstractContextManager[Patience]:
        """Wait in this context for something that cannot be written now."""
        wait = None if self.log is None else self.log.wait
        return nullcontext(always) if wait is None else wait()

    def _write(self, event: Event) -> None:
        if self.log is not None:
            self.log.write(event)


def _runs(by: Sequence[int]) -> list[list[int]]:
    """[0, 0, 1, 1, 1] as [[0, 2], [1, 3]]."""
    return [[rank, len(list(lanes))] for rank, lanes in groupby(by)]
