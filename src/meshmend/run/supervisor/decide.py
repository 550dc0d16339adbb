"""`decide(state, observations, now) → actions`: everything that a launcher decides, and nothing that it does.

No clocks, no processes, no sentences: `run/launcher.py` observes and acts, `run/console.py` words the messages, and
tests/simulators drives this very code through failures at every point. One turn, in order:

    what was seen ─► hosts ─► new hosts ─► deaths ─► next job? ─► bad start ─► halt, restart, or: hangs ─► due starts
    ─► worlds ─► size ─► over?
"""

from __future__ import annotations

import dataclasses

from meshmend.base.status import FAILED, KILLED
from meshmend.run.supervisor.actions import Action, Adopt, FindCheckpoint, Finish
from meshmend.run.supervisor.deaths import mind_death, mind_missed_start, release_rest, start_due
from meshmend.run.supervisor.halting import begin_halt, exit_status, mind_halt
from meshmend.run.supervisor.health import mind_hangs, mind_memory, mind_size, mind_start
from meshmend.run.supervisor.hosts import mind_hosts
from meshmend.run.supervisor.jobs import mind_jobs
from meshmend.run.supervisor.messages import Attached, BadStart, Minority, Signalled, Stopped
from meshmend.run.supervisor.newcomers import mind_new_hosts
from meshmend.run.supervisor.observations import Observations
from meshmend.run.supervisor.ranks import Rank
from meshmend.run.supervisor.restart import begin_attempt, mind_restart
from meshmend.run.supervisor.state import Phase, RunState, Turn
from meshmend.run.supervisor.worlds import mind_world, prepare_next


def decide(run: RunState, seen: Observations, now: float) -> list[Action]:
    """Return the actions to carry out now, in order; updates `run`."""
    turn = Turn(run, seen, now)
    run.new_hosts += seen.added
    if run.phase is Phase.BEGINNING:
        begin_attempt(turn)
        return turn.actions
    # A launcher takes the number from the events; where a full disk kept the last attempt's from being written, workers
    # know better.
    shown = [*(rank.attempt for rank in seen.ranks.values()), *(change.attempt for change in seen.changes)]
    run.attempt = max([run.attempt, *shown])
    if run.phase is Phase.ATTACHING:
        if not run.ranks:
            _adopt_all(turn)
            return turn.actions
        _attach(turn)
    deaths = _see(turn)
    if run.phase is Phase.FINISHED:
        return turn.actions
    mind_hosts(turn)
    mind_new_hosts(turn)
    for rank in deaths:
        mind_death(turn, rank)
    if run.phase is Phase.RUNNING and run.halt_reason is None:
        mind_jobs(turn)
        mind_start(turn)
        mind_memory(turn)
    if run.phase is Phase.RESTARTING:
        if seen.signal is not None:
            run.halt_reason = run.halt_reason or Signalled(seen.signal)
        mind_restart(turn)
    elif run.halt_reason is not None or seen.signal is not None:
        mind_halt(turn)
    else:
        mind_hangs(turn)
        start_due(turn)
        mind_world(turn)
        if run.phase is Phase.RUNNING:
            prepare_next(turn)
            mind_size(turn)
    if run.over():
        release_rest(turn)
    _mind_end(turn)
    return turn.actions


def _see(turn: Turn) -> list[Rank]:
    """Take in the observations of all workers; return the ranks whose worker has ended since the last turn."""
    run, deaths = turn.run, []
    world = run.world.number if run.world is not None else 0
    known = turn.seen.reachable - {change.host for change in turn.seen.changes}
    starts = not run.over() and run.halt_reason is None and run.phase is not Phase.RESTARTING
    for rank in run.ranks.values():
        seen = turn.seen.ranks.get(rank.number)
        if rank.host in known and rank.unseen(seen) and rank.ordered < turn.now and not starts:
            rank.write_off()  # its start never happened, and will not be ordered again
        elif seen is not None and seen.unstarted and rank.awaited and rank.ordered < turn.now:
            mind_missed_start(turn, rank, seen.unstarted)
        elif rank.host in known and seen is None and not rank.awaited:
            # Another agent has taken over and found no worker: the host rebooted before it counted as lost.
            seen = dataclasses.replace(rank.raw, status=KILLED)
            run.moved = run.moved or seen.active  # it may have done steps since it was last seen
        if seen is not None and rank.see(seen, world, run.job):
            deaths.append(rank)
        run.summed = max(run.summed, (rank.seen.summed_world, rank.seen.summed_shrink))
        run.fresh = run.fresh and not rank.seen.active
        # A newcomer that has a state was given it by a worker that had done steps, as far as anybody can tell.
        run.moved = run.moved or rank.completed_steps or (not rank.founder and rank.first_step is not None)
    return deaths


def _adopt_all(turn: Turn) -> None:
    """Have all agents take over the live workers on their hosts."""
    run = turn.run
    run.ranks = {number: Rank(number, host) for number, host in enumerate(run.config.hosts)}
    for host in sorted(turn.seen.reachable):
        turn.do(Adopt(host, tuple(rank.number for rank in run.on([host]))))


def _attach(turn: Turn) -> None:
    """Continue where the previous launcher was killed; workers may be alive on hosts that cannot be reached."""
    run = turn.run
    alive = any((seen.process and seen.status is None) or seen.halts for seen in turn.seen.ranks.values())
    if not alive and run.halt_reason is None and turn.seen.reachable >= {*run.config.hosts}:
        # The launcher was killed in the middle of a restart: the steps of this attempt must not be done in it again.
        run.phase = Phase.RESTARTING
        turn.do(FindCheckpoint())
        return
    begin_attempt(turn, attached=True)
    run.moved = True
    known = [seen for seen in turn.seen.ranks.values() if seen.active or seen.halts or seen.left or seen.job > 1]
    if run.stepped and not known and turn.seen.reachable >= {*run.config.hosts}:
        run.fresh = False  # those that live are newcomers without the state, who must not begin from scratch
    for rank in run.ranks.values():
        seen = turn.seen.ranks.get(rank.number)
        if seen is not None and seen.process:
            run.worlds = max(run.worlds, seen.world, seen.standby, seen.opened)
            if seen.active:
                run.reason = Attached()
        if rank.host not in turn.seen.reachable:
            run.unsure.add(rank.number)
    holders = [seen for seen in turn.seen.ranks.values() if seen.active and (seen.status is None or seen.halts)]
    if run.halt_reason is None and holders and all(seen.halts for seen in holders):
        # They received SIGTERM or waited too long for a launcher; the first of them writes the checkpoint.
        run.halt_reason, run.writer = Stopped(), min(seen.rank for seen in holders)
    if run.halt_reason is not None:
        # Only the end is left: no worker opens another job.
        living = [seen.job for seen in turn.seen.ranks.values() if seen.status is None and seen.ready]
        run.job = min(living) if living else max((seen.job for seen in turn.seen.ranks.values()), default=1)


def _mind_end(turn: Turn) -> None:
    """Finish the run when no worker is left."""
    run = turn.run
    if run.living() or run.phase in (Phase.RESTARTING, Phase.FINISHED):
        return
    if run.fresh and run.halt_reason is None and run.missing():
        return  # no worker could be started yet
    if run.halt_reason is not None and run.halted is None:
        begin_halt(turn)  # no worker is left to stop, but the user must be told
    run.phase = Phase.FINISHED
    # A worker that was released without ever having had the state cannot report that the job is done, nor can a worker
    # that ended before it opened the last of several jobs.
    last = max(rank.raw.job for rank in run.ranks.values())
    heard = [rank for rank in run.ranks.values() if rank.raw.job >= max(last, run.job)]
    said = [rank.seen for rank in heard if rank.seen.active or rank.released is None]
    # Either all workers here were killed for a restart from the last checkpoint when this turned out to be the smaller
    # side of a partition, which must not restart; or the run was stopped between two jobs, or where nobody had begun
    # what it would have continued with: another job, or an attempt from a checkpoint.
    apart = isinstance(run.halt_reason, Minority) and bool(run.restarting)
    stopped = run.halt_reason is not None and not isinstance(run.halt_reason, BadStart)
    unbegun = run.halted_fresh and (run.job > 1 or run.resume != "")
    kept = apart or (stopped and (last > run.job or unbegun))
    status = exit_status(said, run.writer, halted=run.halt_reason is not None, kept=kept)
    if isinstance(run.halt_reason, BadStart):
        status = FAILED  # what the others have done is not what the user requested
    turn.do(Finish(status, run.halt_reason))
