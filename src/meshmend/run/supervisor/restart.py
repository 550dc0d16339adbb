"""Restarting the whole job from its last checkpoint, as without fault tolerance (`--on-failure checkpoint`)."""

from __future__ import annotations

from meshmend.run.supervisor.actions import FindCheckpoint, NoteAttempt, Remove
from meshmend.run.supervisor.messages import Restarting, RestartsExhausted
from meshmend.run.supervisor.observations import Cause
from meshmend.run.supervisor.ranks import Rank, Sign
from meshmend.run.supervisor.state import RESTARTS, Phase, Turn
from meshmend.run.supervisor.worlds import end_world


def begin_attempt(turn: Turn, *, attached: bool = False, restarted: bool = False) -> None:
    """Start the workers of all reachable hosts; in an attached run, only those that are not alive."""
    run = turn.run
    turn.do(NoteAttempt(run.attempt, attached, restarted))
    run.phase, run.begun, run.job, run.over_since = Phase.RUNNING, attached, 1, None
    run.taken = (0, 0)
    run.ranks = {number: Rank(number, host) for number, host in enumerate(run.config.hosts)}
    for rank in run.ranks.values():
        if attached:
            rank.started()  # if no worker is found, one is started as soon as its host can be reached
            rank.founder = False
        elif rank.host not in turn.seen.lost:
            turn.start(rank)


def restart_all(turn: Turn) -> None:
    """Kill all workers, and then restart."""
    run = turn.run
    if run.phase is Phase.RESTARTING:
        return
    run.phase, run.restarting = Phase.RESTARTING, {rank.number for rank in run.active()}
    for rank in run.living():
        turn.kill(rank, Cause.RESTARTED)
    turn.do(FindCheckpoint())


def mind_restart(turn: Turn) -> None:
    """Restart once all workers are dead and the checkpoint is found, unless too many restarts got no further."""
    run, before = turn.run, turn.run.resume
    if turn.seen.checkpoint is not None:
        run.resume = turn.seen.checkpoint
        run.stale = run.stale + 1 if run.resume == before else 0
        run.found = True
    if run.living() or not run.found:
        return
    run.found = False
    end_world(turn)
    for rank in run.ranks.values():
        rank.apply(Sign.WRITE_OFF)
    if run.halt_reason is not None or run.stale >= RESTARTS:
        run.phase = Phase.RUNNING  # no worker is left, so the run will be finished
        if run.halt_reason is None:
            turn.say(RestartsExhausted(RESTARTS, run.resume))
        return
    # Observations of the old workers must not be taken for the new ones'.
    turn.do(Remove(tuple(sorted(turn.seen.reachable))))
    run.attempt += 1
    run.fresh, run.moved, run.stepped = True, False, False
    run.unsure.clear()  # workers that cannot be reached are of an attempt that this one has replaced
    turn.say(Restarting(run.resume))
    begin_attempt(turn, restarted=True)
