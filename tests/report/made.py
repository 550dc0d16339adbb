"""Runs that never were: events as workers, couriers and the launcher would write them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from meshmend.job.protocol import divide
from meshmend.telemetry import (
    Began,
    Committed,
    Component,
    Died,
    Epoch,
    Event,
    Formed,
    How,
    Opened,
    Repaired,
    Skipped,
    Started,
    Struck,
    Why,
)

PACE = 0.1
"""Seconds per step."""
T0 = 1000.0


@dataclass(frozen=True)
class Attempt:
    """Steps `begin` to `end` by so many workers; `deaths` and `joins`: which rank, by step."""

    begin: int
    end: int
    workers: int
    deaths: Mapping[int, int] = field(default_factory=dict)
    joins: Mapping[int, int] = field(default_factory=dict)


def digest(step: int) -> str:
    return f"{zlib.crc32(str(step).encode()):08x}"


def by(lanes: int, ranks: Sequence[int]) -> list[list[int]]:
    """Who computes what when all lanes are divided evenly."""
    return [[rank, len(divide(lanes, len(ranks), place))] for place, rank in enumerate(ranks)]


def handed_over(lanes: int, ranks: Sequence[int], dead: int) -> list[list[int]]:
    """The lanes of the dead go to the others in turn, in the step in which it died."""
    owners = [rank for rank, count in by(lanes, ranks) for _ in range(count)]
    left = [rank for rank in ranks if rank != dead]
    owners = [left[lane % len(left)] if owner == dead else owner for lane, owner in enumerate(owners)]
    return [[rank, len(list(lane))] for rank, lane in groupby(owners)]


def opened(rank: int, step: int = 0, attempt: int = 0, time: float = T0, **data: int) -> Opened:
    settings = {"size": 40, "batch": 8, "lanes": 4, "seed": 0, **data}
    return Opened(time=time, epoch=Epoch(attempt, 1), rank=rank, step=step, reduction="exact", **settings)


def struck(rank: int, time: float, epoch: Epoch, fault: str = "kill", **values: int) -> Struck:
    what = Component.COURIER if fault == "courier" else Component.WORKER
    return Struck(time=time, epoch=epoch, what=what, fault=fault, rank=rank, **values)


def killed(rank: int, time: float, epoch: Epoch, **values: int) -> Died:
    return Died(time=time, epoch=epoch, what=Component.WORKER, how=How.SIGNAL, value=9, rank=rank, **values)


def repaired(
    rank: int, noticed: float, time: float, active: list[int], was: Epoch, epoch: Epoch, **times: float
) -> Repaired:
    parts = {name.replace("re_", "re-").replace("_", " "): seconds for name, seconds in times.items()}
    return Repaired(time=time, epoch=epoch, was=was, rank=rank, round=0, noticed=noticed, times=parts, active=active)


def run(attempts: Sequence[Attempt], skips: Sequence[int] = (), **data: int) -> list[Event]:
    """A correct run: workers and spares open, commit, die and are replaced."""
    lanes, now, events = data.get("lanes", 4), T0, list[Event]()
    for number, attempt in enumerate(attempts):
        ranks, epoch = list(range(attempt.workers)), Epoch(number, 1)
        begin = Epoch(number)
        events.append(Began(time=now, epoch=begin, workers=attempt.workers, spares=0, on_failure="replace"))
        events += [Started(time=now, epoch=begin, rank=rank, process=1) for rank in ranks]
        events.append(Formed(time=now, epoch=epoch, ranks=ranks, why=Why.BEGIN))
        events += [opened(rank, attempt.begin, number, now, **data) for rank in ranks]
        for step in range(attempt.begin, attempt.end):
            now += PACE
            work = by(lanes, ranks)
            if (dead := attempt.deaths.get(step)) in ranks and len(ranks) > 1:
                work = handed_over(lanes, ranks, dead)
                ranks = [rank for rank in ranks if rank != dead]
                was, epoch = epoch, epoch._replace(shrink=epoch.shrink + 1)
                events.append(struck(dead, now, was, step=step))
                events.append(killed(dead, now + 0.004, was, step=step))
                phases = {"revoke": 0.001, "shrink": 0.01}
                events += [repaired(s, now + 0.006, now + 0.03, ranks, was, epoch, **phases) for s in ranks]
                now += 0.05
            if (new := attempt.joins.get(step)) is not None and new not in ranks:
                ranks = sorted([*ranks, new])
                events.append(Started(time=now, epoch=epoch, rank=new, process=2))
                was, epoch = epoch, Epoch(number, epoch.world + 1)
                events.append(Formed(time=now, epoch=epoch, ranks=ranks, why=Why.JOIN, joined=[new]))
                events.append(opened(new, step, number, now, **data))
                phases = {"re_form": 0.8, "state": 0.02}
                events += [repaired(s, now + 0.4, now + 0.9, ranks, was, epoch, **phases) for s in ranks]
                work = by(lanes, ranks)
                now += 1.0
            for late, rank in enumerate(ranks):
                time = now + late * 1e-4
                if step in skips:
                    why = f"worker {rank} saw NaN"
                    events.append(Skipped(time=time, epoch=epoch, rank=rank, step=step, by=work, why=why))
                else:
                    loss = {"loss": 0.2 + 2.1 / (1 + step / 30)}
                    line = Committed(
                        time=time, epoch=epoch, rank=rank, step=step, by=work, digest=digest(step), metrics=loss
                    )
                    events.append(line)
        now += 5.0
    return events
