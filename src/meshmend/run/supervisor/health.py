"""Checks that all workers began properly, that they make progress, and that enough are left."""

from __future__ import annotations

from meshmend.base.clocks import STANDSTILL
from meshmend.base.status import DONE
from meshmend.run.supervisor.messages import (
    AllStill,
    BadStart,
    FirstBusy,
    MemoryRemoved,
    Standstill,
    StateLost,
    TooFew,
)
from meshmend.run.supervisor.observations import Cause
from meshmend.run.supervisor.ranks import Rank, RankState
from meshmend.run.supervisor.state import Turn


def mind_start(turn: Turn) -> None:
    """Halt the run if workers never completed a step, and would not after a restart.

    They made a mistake, failed before they opened their job, or failed too often in their first step: the run would do
    without them from the start, and report at the end that it is done. Whether all workers fail alike shows when the
    others have come as far; then no worker is left to halt.
    """
    run = turn.run
    if run.begun:
        return
    bad = [rank for rank in run.ranks.values() if _began_badly(rank)]
    opened = any(rank.seen.ready for rank in bad)
    left = [rank for rank in run.ranks.values() if rank.alive or rank.state is RankState.DUE]
    # Workers that have already done the last step are not halted: they exit by themselves.
    if bad and bool(left) != run.over() and all(_came_as_far(rank, opened=opened) for rank in left):
        run.halt_reason = BadStart(tuple(rank.number for rank in bad), len(run.ranks))
    elif not bad and run.active():
        run.begun = all(_came_as_far(rank, opened=True) for rank in left)


def _began_badly(rank: Rank) -> bool:
    seen = rank.seen
    hopeless = not seen.ready or (seen.error is not None and seen.error.mistake)
    given_up = rank.state is RankState.GIVEN_UP and seen.status != DONE  # one that came too late for any step exits too
    return given_up or (rank.state is RankState.DEAD and rank.failed_itself and hopeless and not rank.completed_steps)


def _came_as_far(rank: Rank, *, opened: bool) -> bool:
    """Whether a worker has opened its job or, if bad ones had, completed a step; a spare has no step to complete."""
    spare = rank.founder and rank.seen.ready and not rank.seen.active
    return rank.completed_steps or (rank.seen.ready if not opened else spare)


def mind_hangs(turn: Turn) -> None:
    """Kill workers that hang while others make progress; if all are still, wait, but not forever."""
    run, judge = turn.run, turn.run.hangs
    members = [
        rank
        for rank in run.active() or run.living()  # until a worker has the state, any of them may owe the first one
        if rank.state is not RankState.EXITING and not rank.seen.over
    ]
    if run.over():
        for rank in members:  # only its last part is missing, and no other worker needs it any more
            if rank.seen.still.hangs:
                _end(turn, rank)
        return
    step = max((rank.seen.step for rank in members), default=0)
    before = judge.all_still_since
    busy = _busy_alone(members)
    if busy is not None and judge.waits != step:
        judge.waits = step
        turn.say(FirstBusy(busy))
    still = {rank.number: rank.seen.still for rank in members}
    # Nobody waits for a newcomer that is stopped while it loads, but it must be replaced.
    newcomers = [rank for rank in run.living() if rank not in members and rank.state is RankState.STARTING]
    if still and not all(still.values()):
        for rank in newcomers:
            if rank.seen.still.stopped:
                _end(turn, rank)
    for number in judge.judge(still, step, turn.now, -1 if busy is None else busy):
        _end(turn, run.ranks[number])
    if judge.all_still_since is None:
        return
    if before is None:
        turn.say(AllStill())
    if turn.now - judge.all_still_since > STANDSTILL:
        run.halt_reason = Standstill(STANDSTILL)


def _end(turn: Turn, rank: Rank) -> None:
    """Kill a worker that hangs."""
    turn.kill(rank, Cause.STOPPED if rank.seen.still.stopped else Cause.HANG)


def _busy_alone(members: list[Rank]) -> int | None:
    """Return the first worker if it alone is busy between two steps, for so long that it might hang."""
    first = min(members, key=lambda rank: rank.number, default=None)
    if first is None or not first.seen.outside or not first.seen.still.hangs or first.seen.still.stopped:
        return None
    return first.number if len(members) > 1 and not any(one.seen.still for one in members if one is not first) else None


def mind_memory(turn: Turn) -> None:
    """Halt if shared memory was removed: the workers still have theirs, but the next death could not be repaired."""
    run = turn.run
    if hosts := {rank.host for rank in run.living() if rank.seen.memory_removed}:
        run.halt_reason = run.halt_reason or MemoryRemoved(tuple(sorted(hosts)))


def mind_size(turn: Turn) -> None:
    """Halt if too few workers are left; kill the rest if no worker has the state any more."""
    run = turn.run
    left = len(run.living()) + sum(rank.state is RankState.DUE for rank in run.ranks.values())
    if run.over():
        return
    if not run.fresh and left and not run.active():
        run.halt_reason = StateLost()
        for rank in run.living():
            turn.kill(rank, Cause.STATELESS)
    elif left < run.config.least and run.active():
        run.halt_reason = TooFew(left, run.config.least)
