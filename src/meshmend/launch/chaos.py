"""`meshmend chaos`: failures at random in a run on this host, to see that it goes on."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence

from meshmend.errors import JobError
from meshmend.events import Ended, Log, Struck, folder_of, read
from meshmend.launch.order import load_order
from meshmend.train.processes import kill, lives
from meshmend.train.segment import Segment, seats_of

KINDS = ("kill", "hang", "courier", "mpirun", "flip")
LOOK = 0.02
EVICTION = 10.0
"""Seconds in which a flipped worker should be found out."""


def wreak(run: str, *, every: float, kinds: Sequence[str], count: int | None, seed: int) -> int:
    """Strike until the run ends, or so often; 0 if the run is still there or ended well."""
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds or every <= 0:
        raise JobError(
            f"--kinds {','.join(kinds)} --every {every}: choose from {', '.join(KINDS)}, and seconds above 0"
        )
    load_order(run)
    if not seats_of(run):
        raise JobError(f"run {run!r} has no workers on this host: start it first, and then chaos beside it")
    dice, log, struck = random.Random(seed), Log(folder_of(run), "chaos"), 0
    victims: set[int] = set()
    next_ = time.monotonic() + dice.expovariate(1 / every)
    while (count is None or struck < count) and _goes_on(run):
        time.sleep(LOOK)
        if time.monotonic() < next_:
            continue
        kind = dice.choice(list(kinds))
        seat = _strike(run, kind, dice, log, victims)
        if seat is None:
            continue  # nobody can be struck right now
        struck += 1
        print(f"chaos {struck}: {kind}" + (f" of worker {seat}" if seat >= 0 else ""), flush=True)
        if kind == "flip":
            _await_eviction(run, seat)
        next_ = time.monotonic() + dice.expovariate(1 / every)
    ends = [event for event in read(folder_of(run)) if isinstance(event, Ended)]
    print(f"chaos: {struck} failures" + (f", and the run ended with status {ends[-1].status}" if ends else ""))
    return ends[-1].status if ends else 0


def _goes_on(run: str) -> bool:
    return bool(seats_of(run))


def _strike(run: str, kind: str, dice: random.Random, log: Log, victims: set[int]) -> int | None:
    """Strike one that takes part, so long as another one does; the seat, or None if there is none to strike."""
    members = _members(run, victims)
    # Of two states that differ, nobody could say which is right.
    if len(members) < (3 if kind == "flip" else 2) or not all(lives(segment["courier"]) for segment in members):
        return None
    segment = dice.choice(members)
    if kind == "mpirun":
        log.write(Struck(seat=-1, what=kind))
        kill(segment["mpirun"])
        return -1
    log.write(Struck(seat=segment.seat, what=kind))
    victims.add(segment["worker"])
    match kind:
        case "kill":
            kill(segment["worker"])
        case "hang":
            kill(segment["worker"], signal.SIGSTOP)
        case "courier":
            kill(segment["courier"])
        case "flip":
            segment["flip"] = 1
    return segment.seat


def _members(run: str, victims: set[int]) -> list[Segment]:
    """Those that take part and have not been struck: somebody must be left who has the state."""
    segments = [_segment(run, seat) for seat in seats_of(run)]
    found = [s for s in segments if s and s["active"] and not s["over"] and lives(s["worker"], s["born"])]
    return [segment for segment in found if segment["worker"] not in victims]


def _await_eviction(run: str, seat: int) -> None:
    """Wait until the flipped worker is found out: other failures meanwhile could make the wrong states the majority."""
    segment, deadline = _segment(run, seat), time.monotonic() + EVICTION
    while segment is not None and lives(segment["worker"], segment["born"]) and time.monotonic() < deadline:
        time.sleep(LOOK)
        segment = _segment(run, seat)


def _segment(run: str, seat: int) -> Segment | None:
    try:
        return Segment(run, seat)
    except JobError:
        return None  # it has just ended
