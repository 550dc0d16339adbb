"""Failures on purpose, for tests: `fail_at(rank=2, step=7, point="allreduce")`.

A fault is data. It travels to workers and couriers in the environment, strikes once in a run (also when the step is
done again, or the worker is replaced), and writes a `Struck` event, so that an incident's time counts from there.

| point | where |
|---|---|
| share | the worker is about to hand over its first state |
| compute | the worker computes a lane of that step |
| commit | the worker has the sum and is about to commit |
| allreduce | the worker's courier is about to sum, while others may be summing already |
| add, take | the courier is about to add its slice, or to take those of the others; all on one host |
| relay | the courier has half of what comes to it over the links of a mesh; only with `--mesh` |
| revoke, shrink, exchange, roll forward, state | the courier is in that part of a repair |

| kind | what |
|---|---|
| kill | SIGKILL to the worker (and to its courier, where the point is the courier's) |
| hang | SIGSTOP to the worker |
| spin | the worker loops for ever |
| sleep | the worker waits for something that never comes |
| raise | the worker raises an exception |
| exit | the worker exits with status 3 |
| courier | SIGKILL to the courier alone |
| flip | a bit of the worker's state changes, as cosmic rays do it |
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from meshmend.errors import JobError
from meshmend.telemetry import Epoch, Log, Part, Struck

WORKER = ("share", "compute", "commit")
COURIER = ("allreduce", "add", "take", "relay", "revoke", "shrink", "exchange", "roll forward", "state")
KINDS = ("kill", "hang", "spin", "sleep", "raise", "exit", "courier", "flip")
VARIABLE = "MESHMEND_FAULTS"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One failure to come."""

    rank: int
    step: int
    point: str = "compute"
    kind: str = "kill"

    def __post_init__(self) -> None:
        if self.point not in WORKER + COURIER or self.kind not in KINDS:
            raise JobError(
                f"point={self.point!r}, kind={self.kind!r}: choose a point from {', '.join(WORKER + COURIER)} and a "
                f"kind from {', '.join(KINDS)}"
            )
        if self.point in COURIER and self.kind not in ("kill", "courier", "hang"):
            raise JobError(f"kind={self.kind!r} happens in a worker: choose a point from {', '.join(WORKER)}")
        if self.kind == "flip" and self.point != "commit":
            raise JobError(f"a flip at point={self.point!r} was asked for: choose point='commit'")


@contextmanager
def fail_at(*, rank: int, step: int, point: str = "compute", kind: str = "kill") -> Iterator[Fault]:
    """While this context lasts, runs that are started meet this fault; nest several for several faults."""
    fault = Fault(rank=rank, step=step, point=point, kind=kind)
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
    """The faults of one rank, as a worker or a courier looks for them; with none, looking costs nothing."""

    def __init__(self, rank: int, folder: Path, log: Log, epoch: Callable[[], Epoch], worker: int = 0) -> None:
        every = [Fault(**values) for values in json.loads(os.environ.get(VARIABLE, "[]"))]
        self._mine = [(number, fault) for number, fault in enumerate(every) if fault.rank == rank]
        self._folder, self._log, self._epoch, self._worker = folder, log, epoch, worker or os.getpid()

    def strike(self, point: str, step: int) -> Fault | None:
        """Do what is due here; a fault that only the caller can bring about is returned."""
        for number, fault in self._mine:
            if (fault.point, fault.step) == (point, step) and self._first(number):
                what = Part.COURIER if fault.kind == "courier" else Part.WORKER
                self._log.write(
                    Struck(
                        epoch=self._epoch(), what=what, fault=fault.kind, rank=fault.rank, process=self._worker,
                        step=step, point=point,
                    )
                )  # fmt: skip
                self._do(fault)
                return fault
        return None

    def _first(self, number: int) -> bool:
        """Whether nobody has brought this fault about yet."""
        try:
            os.close(os.open(self._folder / f"fault-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _do(self, fault: Fault) -> None:
        match fault.kind:
            case "kill":
                os.kill(self._worker, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
            case "courier" if fault.point in COURIER:
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                os.kill(self._worker, signal.SIGSTOP)
            case "spin":
                while True:
                    pass
            case "sleep":
                threading.Event().wait()
            case "exit":
                os._exit(3)
            case "raise":
                raise RuntimeError(f"a fault on purpose: {fault}")
