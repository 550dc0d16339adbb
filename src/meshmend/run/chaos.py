"""`meshmend chaos`: failures at random in a run on this host, to see that it goes on."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence

from meshmend.base.processes import is_alive, kill
from meshmend.errors import JobError
from meshmend.job.shm.segment import Segment, ranks_of
from meshmend.run.spec import load_spec
from meshmend.telemetry import Ended, Epoch, Log, Part, Struck, folder_of, read

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
    load_spec(run)
    if not ranks_of(run):
        raise JobError(f"run {run!r} has no workers on this host: start it first, and then chaos beside it")
    dice, log, struck = random.Random(seed), Log(folder_of(run), "chaos"), 0
    victims: set[int] = set()
    next_ = time.monotonic() + dice.expovariate(1 / every)
    while (count is None or struck < count) and _goes_on(run):
        time.sleep(LOOK)
        if time.monotonic() < next_:
            continue
        kind = dice.choice(list(kinds))
        rank = _strike(run, kind, dice, log, victims)
        if rank is None:
            continue  # nobody can be struck right now
        struck += 1
        print(f"chaos {struck}: {kind}" + (f" of worker {rank}" if rank >= 0 else ""), flush=True)
        if kind == "flip":
            _await_eviction(run, rank)
        next_ = time.monotonic() + dice.expovariate(1 / every)
    ends = [event for event in read(folder_of(run)) if isinstance(event, Ended)]
    print(f"chaos: {struck} failures" + (f", and the run ended with status {ends[-1].status}" if ends else ""))
    return ends[-1].status if ends else 0


def _goes_on(run: str) -> bool:
    return bool(ranks_of(run))


def _strike(run: str, kind: str, dice: random.Random, log: Log, victims: set[int]) -> int | None:
    """Strike one that takes part, so long as another one does; the rank, or None if there is none to strike."""
    members = _members(run, victims)
    # Of two states that differ, nobody could say which is right.
    if len(members) < (3 if kind == "flip" else 2) or not all(is_alive(segment["courier"]) for segment in members):
        return None
    segment = dice.choice(members)
    if kind == "mpirun":
        log.write(Struck(epoch=_epoch(segment), what=Part.MPIRUN, fault=kind, step=segment["step"]))
        kill(segment["mpirun"])
        return -1
    what, worker = Part.COURIER if kind == "courier" else Part.WORKER, segment["worker"]
    log.write(
        Struck(epoch=_epoch(segment), what=what, fault=kind, rank=segment.rank, process=worker, step=segment["step"])
    )
    victims.add(worker)
    match kind:
        case "kill":
            kill(segment["worker"])
        case "hang":
            kill(segment["worker"], signal.SIGSTOP)
        case "courier":
            kill(segment["courier"])
        case "flip":
            segment["flip"] = 1
    return segment.rank


def _epoch(segment: Segment) -> Epoch:
    return Epoch(segment["attempt"], segment["world"], segment["shrink"])


def _members(run: str, victims: set[int]) -> list[Segment]:
    """Those that take part and have not been struck: somebody must be left who has the state."""
    segments = [_segment(run, rank) for rank in ranks_of(run)]
    found = [s for s in segments if s and s["active"] and not s["over"] and is_alive(s["worker"], s["born"])]
    return [segment for segment in found if segment["worker"] not in victims]


def _await_eviction(run: str, rank: int) -> None:
    """Wait until the flipped worker is found out: other failures meanwhile could make the wrong states the majority."""
    segment, deadline = _segment(run, rank), time.monotonic() + EVICTION
    while segment is not None and is_alive(segment["worker"], segment["born"]) and time.monotonic() < deadline:
        time.sleep(LOOK)
        segment = _segment(run, rank)


def _segment(run: str, rank: int) -> Segment | None:
    try:
        return Segment(run, rank)
    except JobError:
        return None  # it has just ended
