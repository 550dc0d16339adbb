"""Failures on purpose, for tests: `fail_at(rank=2, step=7, point="allreduce")`.

A fault is data. It travels to workers and couriers in the environment, strikes once in a run (even when the step is
done again, or the worker is replaced), and writes a `Struck` event, so that an incident's time counts from there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from meshmend.job.faults.base import KINDS, Fault, Point
from meshmend.telemetry import Epoch, Log, Struck

VARIABLE = "MESHMEND_FAULTS"


@contextmanager
def fail_at(*, rank: int, step: int, point: str = "compute", kind: str = "kill", sum: int = 0) -> Iterator[Fault]:
    """While this context lasts, runs that are started meet this fault; nest several contexts for several faults.

    Where steps have several sums, `sum` says in which, from 0.
    """
    fault = Fault(rank=rank, step=step, point=point, kind=kind, sum=sum)
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = json.dumps([*json.loads(before or "[]"), asdict(fault)])
    try:
        yield fault
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


class Faults:
    """The faults of one rank, as a worker or a courier looks for them; without any, looking costs nothing."""

    def __init__(self, rank: int, folder: Path, log: Log, epoch: Callable[[], Epoch], worker: int = 0) -> None:
        every = [Fault(**values) for values in json.loads(os.environ.get(VARIABLE, "[]"))]
        self._mine = [(number, fault) for number, fault in enumerate(every) if fault.rank == rank]
        self._folder, self._log, self._epoch, self._worker = folder, log, epoch, worker or os.getpid()

    def strike(self, point: Point, step: int, turn: int = 0) -> Fault | None:
        """Bring about what is due here; the fault is returned, since some only the caller can bring about."""
        for number, fault in self._mine:
            if (fault.point, fault.step, fault.sum) == (point, step, turn) and self._first(number):
                self._log.write(
                    Struck(
                        epoch=self._epoch(), what=KINDS[fault.kind].part, fault=fault.kind, rank=fault.rank,
                        process=self._worker, step=step, point=point.value,
                    )
                )  # fmt: skip
                inside = KINDS[fault.kind].inside
                if inside is not None:
                    inside(fault, self._worker)
                return fault
        return None

    def _first(self, number: int) -> bool:
        """Whether this fault has not struck yet."""
        try:
            os.close(os.open(self._folder / f"fault-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True
