"""One job after another: when the run moves on to the next job of its script, and which state is reset then.

A run is in one job at a time. A worker that has left it may be ready for the next one while others are still leaving:
it waits, and counts as having left, until all live workers have. Then every worker has the next job to open, as at the
beginning of the run: a new world is formed as soon as all are ready.
"""

from __future__ import annotations

from meshmend.base.clocks import RELEASE
from meshmend.job.protocol import has_majority
from meshmend.run.supervisor.messages import Minority
from meshmend.run.supervisor.observations import Cause
from meshmend.run.supervisor.patience import Backoff, HangJudge
from meshmend.run.supervisor.ranks import RankState
from meshmend.run.supervisor.state import Turn
from meshmend.run.supervisor.worlds import end_world


def mind_jobs(turn: Turn) -> None:
    """Move on to the next job once a worker has opened it and no worker is left in this one."""
    run, alive = turn.run, turn.run.living()
    ahead = [rank.raw.job for rank in alive if rank.raw.job > run.job]
    through = all(rank.seen.left or not (rank.seen.ready or rank.awaited) for rank in alive)
    if ahead and turn.seen.hosts_known and through:
        _begin(turn, min(ahead))
    for rank in run.living():
        # It was still loading when the job that it opens now ended, and could not be told.
        if rank.raw.ready and rank.raw.job < run.job and not rank.raw.left:
            turn.release(rank, run.job - 1)
            # One that trains in that job and never had the others' last total waits for it in vain.
            if rank.released is not None and turn.now - rank.released > RELEASE:
                turn.kill(rank, Cause.CUT_OFF)


def _begin(turn: Turn, job: int) -> None:
    run = turn.run
    run.job, run.over_since, run.summed = job, None, (0, 0)
    end_world(turn)
    for rank in run.ranks.values():
        rank.next_job(job)
    run.fresh = not run.active()  # this launcher may have attached in the middle of the job
    run.begun = run.moved = not run.fresh
    run.hangs, run.backoff = HangJudge(), Backoff()
    run.unready, run.prepare_at = 0, 0.0
    # Where this launcher has attached, workers that it has never seen may have done steps of this job.
    run.unsure &= {rank.number for rank in run.ranks.values() if not rank.raw.process}
    left = {rank.number for rank in run.active()}
    if run.unsure and not has_majority(left, left | run.unsure):
        run.halt_reason = Minority(tuple(sorted(left)), tuple(sorted(left | run.unsure)))
    if run.fresh:
        run.reason = None
        for rank in run.ranks.values():
            rank.joining, rank.founder = False, True  # nobody trains whom it could join: all begin together
            if rank.state is RankState.DUE and not rank.misses:
                turn.start(rank)
    for rank in run.ranks.values():
        if rank.lapsed and rank.state is RankState.DEAD and run.halt_reason is None:
            rank.lapsed = False
            run.config.policy.after_death(turn, rank)
