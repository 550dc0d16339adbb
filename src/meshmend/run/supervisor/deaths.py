"""What follows the death of a worker, and when its replacement starts."""

from __future__ import annotations

from meshmend.base.clocks import HEAD_START, RELEASE
from meshmend.base.status import DONE, HALTED, MISUSED
from meshmend.run.supervisor.actions import Finish, NoteDeath
from meshmend.run.supervisor.messages import GivenUp, Replacing, StartFailed, WorkerEnded, WorkerRaised
from meshmend.run.supervisor.observations import Cause, CourierState
from meshmend.run.supervisor.patience import start_pause
from meshmend.run.supervisor.ranks import Rank, RankState, Sign
from meshmend.run.supervisor.state import RESTARTS, Phase, Turn
from meshmend.run.supervisor.worlds import end_world

NO_STEP = 1 << 62
"""A step that is never reached: a rank that waits for it starts by time alone."""


def mind_death(turn: Turn, rank: Rank) -> None:
    """Handle the end of a worker; its agent has already killed its courier."""
    run, seen = turn.run, rank.seen
    assert seen.status is not None
    rank.lapsed = run.over() and seen.status not in (DONE, HALTED)
    if run.phase is Phase.RESTARTING or seen.cause in (Cause.STATELESS, Cause.NOT_OPENED, Cause.RUN_ENDED):
        return
    if seen.status in (DONE, HALTED) and (seen.over or run.halt_reason or not seen.ready):
        return
    member = seen.agreed > 0 or (run.world is not None and run.world.has(rank))
    # Before it has the state it does not know the step; the others do.
    steps = [seen.step] if member and seen.active else [one.seen.step for one in run.active()]
    turn.do(NoteDeath(seen, member, max(steps, default=-1)))
    if seen.error is not None:
        turn.say(WorkerRaised(rank.number, seen.error))
    else:
        outside = seen.cause is Cause.HANG and seen.outside
        turn.say(
            WorkerEnded(
                rank.number, seen.status, seen.cause, early=seen.status == DONE, outside=outside, process=seen.process,
                step=seen.step if seen.active else -1,
            )
        )  # fmt: skip
    anew = _may_begin_anew(turn)
    if anew:
        run.fresh = True
        end_world(turn)
    mistaken = seen.error is not None and seen.error.mistake and not run.begun  # a new worker would repeat it
    if run.halt_reason is None and not run.over() and not mistaken:
        run.config.policy.after_death(turn, rank)
    if anew and rank.state is RankState.DEAD:
        rank.forget()  # what it had is gone, and no other worker is to take the run for begun because of it


def _may_begin_anew(turn: Turn) -> bool:
    """Whether no worker with the state is left, but none did a step with it: all may begin as at first.

    A worker on a host that cannot be seen may have done steps, and others might repeat them.
    """
    run, seen = turn.run, turn.seen
    done = run.fresh or run.moved or run.active() or run.halt_reason is not None
    return not done and seen.hosts_known and not seen.lost and not run.cut_off


def replace(turn: Turn, rank: Rank, *, at_once: bool = False) -> None:
    """Start a replacement for a dead worker, unless its rank keeps failing before it completes a step.

    Until some worker has the state, a worker that was killed is restarted, and the others wait for it.
    """
    run, seen = turn.run, rank.seen
    blamed = (seen.status or 0) >= 0  # it exited by itself, and may always do so at the same point
    rank.failures = 1 if (rank.completed_steps if blamed else seen.active) else rank.failures + 1
    early = run.fresh and not rank.failed_itself
    if rank.host in turn.seen.lost or not (early or run.active()):
        return  # its host is lost, or no worker is left to get the state from
    if rank.failures > RESTARTS:
        turn.say(GivenUp(rank.number, RESTARTS))
        rank.apply(Sign.GIVE_UP)
        return
    rank.joining = not early
    if early and run.world is not None:
        end_world(turn)  # it was opened for the worker that died, and the others must not begin without its successor
    turn.say(Replacing(rank.number))
    if at_once or early:
        turn.start(rank)
    else:
        rank.due = max(one.seen.step for one in run.active()), turn.now + HEAD_START
        rank.apply(Sign.POSTPONE)


def mind_missed_start(turn: Turn, rank: Rank, why: str) -> None:
    """Handle a start that could not be carried out (no room in shared memory, too many processes).

    No other worker may suffer from it: the supervisor retries at growing intervals for as long as others train. Until
    some worker has the state there is nothing to lose, and the user learns soon that the run cannot begin.
    """
    run = turn.run
    rank.miss()
    if rank.misses == 1:
        turn.say(StartFailed(rank.number, why))
    if run.fresh and rank.misses >= RESTARTS:
        run.phase = Phase.FINISHED
        turn.do(Finish(MISUSED))
        return
    rank.joining = rank.joining or not run.fresh
    rank.due = NO_STEP, turn.now + start_pause(rank.misses)


def release_rest(turn: Turn) -> None:
    """After the last step, tell workers to leave that were never needed, or did not hear that all members leave.

    A worker that does not leave is killed: it may be stopped, or be waiting for a step that the others have done
    without it; no user code runs between hearing that all leave and having left. So is a worker whose last step is a
    different sum from the others': it was left out of the group, which then summed again.
    A script may do anything for any time after its last step, unless only workers that were never needed are left.
    """
    run = turn.run
    last = max(rank.seen.step for rank in run.ranks.values())
    sums = {_sum_of(rank) for rank in run.ranks.values() if rank.seen.over and rank.seen.active}
    run.over_since = turn.now if run.over_since is None else run.over_since
    # A stopped courier blocks all others, even if its worker has already left and is no longer watched.
    stopped = any(rank.seen.courier is CourierState.STOPPED for rank in run.living())
    blocked = stopped or turn.now - run.over_since > RELEASE
    waited_for = any(not rank.seen.over for rank in run.active())
    for rank in run.living():
        if rank.awaited:
            continue  # it may be one that was left out of the last step
        # It was told to leave while its courier joined the group: now the courier waits for it, and so do the others.
        holds_up = waited_for and rank.released is not None and rank.seen.courier is CourierState.ALIVE
        ahead = rank.raw.job > run.job  # it has opened the next job, and needs nothing more from this one
        if ahead or (rank.seen.left and not holds_up and (rank.seen.active or run.active())):
            continue
        alone = blocked or rank.seen.stuck or rank.seen.courier is not CourierState.ALIVE
        differs = run.left_out(rank) or (rank.seen.step == last and _sum_of(rank) not in sums)
        if rank.seen.active and alone and not rank.seen.over and differs:
            turn.kill(rank, Cause.CUT_OFF)
        elif not rank.seen.active or (alone and (not rank.seen.left or rank.seen.step < last)):
            turn.release(rank, run.job)
        if rank.released is not None and turn.now - rank.released > RELEASE:
            if not rank.seen.active:
                turn.kill(rank, Cause.RUN_ENDED)
            elif rank.seen.step < last or holds_up or not rank.seen.left:
                turn.kill(rank, Cause.CUT_OFF)


def _sum_of(rank: Rank) -> tuple[int, int, int]:
    """Identify the sum that a rank's last step was made from."""
    return rank.seen.step, rank.seen.summed_world, rank.seen.summed_shrink


def start_due(turn: Turn) -> None:
    """Start the workers that are due, after the interrupted step: loading a framework takes processor time."""
    run = turn.run
    if run.over():
        return
    step = max((rank.seen.step for rank in run.active()), default=-1)
    for rank in run.ranks.values():
        if rank.host not in turn.seen.reachable:
            continue
        after, at = rank.due
        if rank.state is RankState.DUE and (step > after or turn.now > at):
            turn.start(rank)
        elif rank.alive and rank.awaited and rank.ordered < turn.now:
            turn.order_start(rank)  # its agent was lost before it could start the worker
