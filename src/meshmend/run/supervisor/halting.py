"""Stopping a run: one worker writes a checkpoint, and then all exit."""

from __future__ import annotations

from meshmend.base.clocks import HALT
from meshmend.run.supervisor.actions import Halt
from meshmend.run.supervisor.messages import Halting, Signalled
from meshmend.run.supervisor.observations import Cause
from meshmend.run.supervisor.ranks import RankState
from meshmend.run.supervisor.state import Phase, Turn


def mind_halt(turn: Turn) -> None:
    """Tell workers to stop; a second signal, or too long a wait, kills them."""
    run, hurry = turn.run, bool(turn.seen.signal)
    if run.halted is None:
        hurry = False
        begin_halt(turn)
    assert run.halted is not None
    late = turn.now - run.halted > HALT
    for rank in run.living():
        if not rank.seen.ready:
            turn.kill(rank, Cause.NOT_OPENED)
        elif hurry or (late and not rank.seen.saving):
            turn.kill(rank, Cause.HALTED)


def begin_halt(turn: Turn) -> None:
    """Choose who writes the checkpoint, say why the run stops, and have it stopped."""
    run = turn.run
    reason = run.halt_reason = run.halt_reason or Signalled(turn.seen.signal)
    run.phase, run.halted = Phase.HALTING, turn.now
    run.writer = min((r.number for r in run.active() if r.state is not RankState.EXITING), default=-1)
    turn.say(Halting(reason, checkpoint=run.writer >= 0))
    turn.do(Halt(run.writer))
