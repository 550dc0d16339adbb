"""Whether the workers that are left make progress, and are enough."""

from __future__ import annotations

from meshmend.base.clocks import STANDSTILL
from meshmend.run.supervisor.messages import AllStill, Standstill, StateLost, TooFew
from meshmend.run.supervisor.observations import HANGS, Cause
from meshmend.run.supervisor.ranks import RankState
from meshmend.run.supervisor.state import Turn


def mind_hangs(turn: Turn) -> None:
    """Kill those that hang while others make progress; where all are still, wait, but not for ever."""
    run, judge = turn.run, turn.run.hangs
    members = [
        rank
        for rank in run.active() or run.living()  # before anybody has the state, somebody owes the first one
        if rank.state is not RankState.EXITING and not rank.seen.over
    ]
    if run.over():
        for rank in members:  # its last part is all that is missing, and nobody needs it any more
            if rank.seen.still >= HANGS:
                turn.kill(rank, Cause.HANG)
        return
    step = max((rank.seen.step for rank in members), default=0)
    before = judge.all_still_since
    for number in judge.judge({rank.number: rank.seen.still for rank in members}, step, turn.now):
        turn.kill(run.ranks[number], Cause.HANG)
    if judge.all_still_since is None:
        return
    if before is None:
        turn.say(AllStill())
    if turn.now - judge.all_still_since > STANDSTILL:
        run.halt_reason = Standstill(STANDSTILL)


def mind_size(turn: Turn) -> None:
    """Halt where too few are left; stop those that are left when nobody has the state any more."""
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
