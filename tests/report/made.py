"""Runs that never were: events as workers, couriers and the launcher would write them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from meshmend.events import Began, Committed, Died, Event, Formed, Opened, Repaired, Skipped, Started, Struck
from meshmend.train.protocol import divide

PACE = 0.1
"""Seconds a step."""
T0 = 1000.0


@dataclass(frozen=True)
class Life:
    """Steps `begin` to `end` by so many workers; `deaths` and `joins`: which seat, by step."""

    begin: int
    end: int
    workers: int
    deaths: Mapping[int, int] = field(default_factory=dict)
    joins: Mapping[int, int] = field(default_factory=dict)


def seal(step: int) -> str:
    return f"{zlib.crc32(str(step).encode()):08x}"


def by(lanes: int, seats: Sequence[int]) -> list[list[int]]:
    """Who computes what when all lanes are divided evenly."""
    return [[seat, len(divide(lanes, len(seats), place))] for place, seat in enumerate(seats)]


def handed_over(lanes: int, seats: Sequence[int], dead: int) -> list[list[int]]:
    """The lanes of the dead go to the others in turn, in the step in which it died."""
    owners = [seat for seat, count in by(lanes, seats) for _ in range(count)]
    left = [seat for seat in seats if seat != dead]
    owners = [left[lane % len(left)] if owner == dead else owner for lane, owner in enumerate(owners)]
    return [[seat, len(list(lane))] for seat, lane in groupby(owners)]


def opened(seat: int, step: int = 0, life: int = 0, time: float = T0, **data: int) -> Opened:
    settings = {"size": 40, "batch": 8, "lanes": 4, "seed": 0, **data}
    return Opened(time=time, seat=seat, life=life, step=step, reduction="exact", **settings)


def repaired(seat: int, noticed: float, time: float, active: list[int], **times: float) -> Repaired:
    parts = {name.replace("re_", "re-").replace("_", " "): seconds for name, seconds in times.items()}
    return Repaired(time=time, seat=seat, round=0, noticed=noticed, times=parts, active=active)


def run(lives: Sequence[Life], skips: Sequence[int] = (), **data: int) -> list[Event]:
    """A correct run: workers and spares open, commit, die and are replaced."""
    lanes, now, events = data.get("lanes", 4), T0, list[Event]()
    for number, life in enumerate(lives):
        seats = list(range(life.workers))
        events.append(Began(time=now, life=number, workers=life.workers, spares=0, on_failure="replace"))
        events.append(Formed(time=now, world=0, seats=seats, why="start"))
        events += [Started(time=now, seat=seat, process=1) for seat in seats]
        events += [opened(seat, life.begin, number, now, **data) for seat in seats]
        for step in range(life.begin, life.end):
            now += PACE
            work = by(lanes, seats)
            if (dead := life.deaths.get(step)) in seats and len(seats) > 1:
                work = handed_over(lanes, seats, dead)
                seats = [seat for seat in seats if seat != dead]
                events.append(Struck(time=now, seat=dead, what="worker"))
                events.append(Died(time=now + 0.004, seat=dead, what="worker", how="SIGKILL"))
                events += [repaired(s, now + 0.006, now + 0.03, seats, revoke=0.001, shrink=0.01) for s in seats]
                now += 0.05
            if (new := life.joins.get(step)) is not None and new not in seats:
                seats = sorted([*seats, new])
                events.append(Started(time=now, seat=new, process=2))
                events.append(Formed(time=now, world=1, seats=seats, why=f"worker {new} joins"))
                events.append(opened(new, step, number, now, **data))
                events += [repaired(s, now + 0.4, now + 0.9, seats, re_form=0.8, state=0.02) for s in seats]
                work = by(lanes, seats)
                now += 1.0
            for late, seat in enumerate(seats):
                time = now + late * 1e-4
                if step in skips:
                    why = f"worker {seat} saw NaN"
                    events.append(Skipped(time=time, seat=seat, life=number, step=step, by=work, why=why))
                else:
                    loss = {"loss": 0.2 + 2.1 / (1 + step / 30)}
                    line = Committed(
                        time=time, seat=seat, life=number, step=step, by=work, seal=seal(step), metrics=loss
                    )
                    events.append(line)
        now += 5.0
    return events
