"""One run of one system: ordinary steps, then failures, each in the middle of the victim's computing."""

from __future__ import annotations

import os
import signal
import statistics
import time
from dataclasses import dataclass, field

from count import Tally, step_times, tally, tally_by_ledger
from rig import Over, Process, Record, Rig, TooLate
from systems import System

BATCH = {25: 192, 100: 128}
SLOTS = {size: 3840 // batch for size, batch in BATCH.items()}
WARM = 4
"""Steps that are not measured."""
AFTER = 4
"""Steps after a failure before anything else happens."""
INTO = 0.2
"""How far into a step its worker is struck, in steps: computing takes most of one."""
START = 90
"""Seconds in which it must have begun."""


@dataclass(frozen=True)
class Failure:
    """A worker that was killed or stopped, and what came of it."""

    kind: str
    """"kill" or "hang"."""
    ordinary: float
    """The median of the steps just before, in seconds."""
    next: float | None = None
    """Seconds to the next committed step; None where none came."""
    rejoin: float | None = None
    """Seconds until a new worker's samples count in a step; None where none came."""
    steps_lost: int = 0
    """Steps that were computed and thrown away."""
    why: str = ""
    """Where none came: "ended", or how long was waited."""


@dataclass(frozen=True)
class Result:
    """What one run gave."""

    system: str
    size: int
    workers: int
    steps: list[float]
    sums: list[float]
    failures: list[Failure] = field(default_factory=list)
    samples: Tally | None = None
    error: str = ""
    round: int = 0


def run(
    name: str, system: System, size: int, workers: int, steps: int, kills: int, hang: bool, patience: float
) -> Result:
    """Start it, let it take so many ordinary steps, and strike."""
    found: list[Failure] = []
    times: list[float] = []
    sums: list[float] = []
    with Rig(system, size, workers) as rig:
        try:
            rig.wait(lambda: True if _all_at(rig, WARM, workers) else None, START)
            first = rig.living()[0]
            begin = first.last()
            rig.wait(lambda: True if first.last() >= begin + steps else None, START)
            times = step_times(first.records, begin, begin + steps)
            sums = _sums(list(rig.processes.values()), begin)
            for number in range(kills):
                found.append(_strike(rig, "kill", 1 + number % (workers - 1), patience))
                if found[-1].next is None:
                    break
                _on(rig, AFTER)
            ended = bool(found) and found[-1].next is None
            tallied = _tally(rig, size) if kills and not ended else None
            if hang and not ended:
                found.append(_strike(rig, "hang", workers - 1, patience))
        except (TooLate, Over) as error:
            return Result(name, size, workers, times, sums, found, error=f"{type(error).__name__}: {error}")
        return Result(name, size, workers, times, sums, found, tallied)


def _all_at(rig: Rig, step: int, workers: int) -> bool:
    living = rig.living()
    return len(living) == workers and all(one.last() >= step and one.parts() == workers for one in living)


def _sums(processes: list[Process], begin: int) -> list[float]:
    """Seconds of each sum: those of the one who waited least, since the others waited for it to begin."""
    rows = [[one["sum"] for one in process.records if "sum" in one] for process in processes]
    in_loop = [
        {one["step"]: one["sum"] for one in process.records if "sum" in one and one["step"] >= begin}
        for process in processes
    ]
    if any(in_loop):
        common = set.intersection(*map(set, in_loop))
        return [min(row[step] for row in in_loop) for step in sorted(common)]
    return [min(row) for row in zip(*rows, strict=False)]


def _strike(rig: Rig, kind: str, rank: int, patience: float) -> Failure:
    """Kill or stop one worker just after it has begun to compute, and wait for what follows."""
    victim = next(one for one in rig.living() if one.rank == rank)
    others = [one for one in rig.living() if one is not victim]
    recent = [time for one in others[:1] for time in step_times(one.records, one.last() - 12, one.last())]
    ordinary = statistics.median(recent or [float("nan")])
    known = set(rig.processes)
    seen = sum("drawn" in one for one in victim.records)
    begun = rig.wait(lambda: _begun(victim, seen), 30)
    time.sleep(max(0.0, begun + INTO * ordinary - time.monotonic()))  # where in the step it is struck, nothing else
    at = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
    last = victim.last()

    def after(one: Process) -> Record | None:
        new = one.path.name not in known
        return next((r for r in one.done() if r["at"] > at and (new or r["done"] > last)), None)

    def earliest() -> Record | None:
        rows = [row for one in rig.processes.values() if one is not victim and (row := after(one))]
        return min(rows, key=lambda row: float(row["at"])) if rows else None

    def newcomer() -> Record | None:
        rows = [row for name, one in rig.processes.items() if name not in known and (row := after(one))]
        return min(rows, key=lambda row: float(row["at"])) if rows else None

    try:
        row = rig.wait(earliest, patience)
    except Over:
        return Failure(kind, ordinary, why="ended")
    except TooLate:
        return Failure(kind, ordinary, why=f"none in {patience:.0f} s")
    before = max(one.last() for one in rig.processes.values() if one.path.name in known)
    back = max(0, before - row["done"] + 1) if all(row is not after(one) for one in others) else 0
    rejoin = None
    if kind == "kill":
        rejoin = rig.wait(newcomer, patience)["at"] - at
    dropped = [sum("done" in r and not r["counted"] and r["at"] > at for r in one.records) for one in others]
    return Failure(kind, ordinary, row["at"] - at, rejoin, back + max(dropped, default=0))


def _begun(one: Process, seen: int) -> float | None:
    """When it took up the batch after so many."""
    drawn = [record["at"] for record in one.records if "drawn" in record]
    return float(drawn[seen]) if len(drawn) > seen else None


def _on(rig: Rig, steps: int) -> None:
    """So many steps more, and, after going back to a checkpoint, on to where it was before."""
    living = rig.living()
    most = max(one.last() for one in rig.processes.values())
    until = max(most, max(one.last() for one in living) + steps)
    rig.wait(lambda: True if _all_at(rig, until, rig.workers) else None, 90)


def _tally(rig: Rig, size: int) -> Tally:
    rows = sorted(rig.processes.values(), key=lambda one: one.seen)
    notes = [(one.rank, one.records) for one in rows]
    if rig.system.how == "meshmend":
        return tally_by_ledger(notes, rig.ledger(), BATCH[size], SLOTS[size])
    end = min(one.last() for one in rig.living())
    cut = [(rank, [one for one in records if one.get("done", 0) <= end]) for rank, records in notes]
    return tally(cut, BATCH[size])
