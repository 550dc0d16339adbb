"""When a world of couriers is formed, prepared next to the present one, entered, and abandoned.

New couriers wait until their world is entered. So the next world can be prepared while this one works, and the switch
takes milliseconds instead of the second that starting takes.
"""

from __future__ import annotations

from meshmend.base.clocks import EXIT_WAIT, REPAIR, SETTLE, WORLD_START
from meshmend.base.status import MISUSED
from meshmend.run.supervisor.actions import (
    ClearCouriers,
    EnterWorld,
    Finish,
    KillWorld,
    Loss,
    NoteMpirunLost,
    OpenWorld,
    Probe,
)
from meshmend.run.supervisor.messages import (
    Begin,
    CouriersStopped,
    Joined,
    JoinFailed,
    MpirunLost,
    RepairStuck,
    Restarted,
    StateLost,
    WorldReason,
)
from meshmend.run.supervisor.observations import Cause, CourierState
from meshmend.run.supervisor.patience import start_pause
from meshmend.run.supervisor.ranks import Rank, RankState
from meshmend.run.supervisor.state import RESTARTS, Phase, Turn, World

TOLD = 2
"""After how many worlds for newcomers that did not come up people are told; one may be an accident."""


def form(turn: Turn, reason: WorldReason) -> None:
    """Form a world immediately, in place of a lost one."""
    end_world(turn)
    _enter(turn, _open(turn, reason))


def end_world(turn: Turn) -> None:
    """End the present world: none of its couriers may be left when a new one begins."""
    _abandon(turn)
    if turn.run.world is not None:
        turn.do(KillWorld(turn.run.world.number))
        turn.run.world = None
    turn.do(ClearCouriers())
    turn.run.cleared = turn.now


def mind_world(turn: Turn) -> None:
    """Form a world if there is none; kill the worker of a lost courier."""
    run = turn.run
    if run.expelling or _awaits_exit(turn):
        return
    if run.world is None:
        if not run.over():  # a member that was left behind would repeat steps that the others have done
            _form_first(turn)
        return
    world = run.world
    members = [rank for rank in run.present() if world.has(rank) and not rank.seen.over]
    lost = [rank for rank in members if rank.seen.courier is CourierState.LOST]
    left_out = [rank for rank in lost if _was_left_out(turn, world, rank)]
    if left_out and not run.over():
        for rank in left_out:  # even where nobody else is left: it may have another total of the same step
            turn.kill(rank, Cause.LOST_COURIER)
        return
    if run.over():
        _kill_lost(turn, lost)
        return
    if all(rank.seen.agreed == world.number for rank in members):
        run.unsure.clear()
    # Without repair, a world ends with its first failure, and its couriers exit by themselves, one after another.
    gone = world.number in turn.seen.ended_worlds or (bool(lost) and not run.config.policy.repairs)
    stopped = any(rank.seen.courier is CourierState.STOPPED for rank in members)
    if _settled(turn, world, members) and any(rank.seen.stuck for rank in members):
        known = turn.seen.hosts_known and network_is_whole(turn)
        if known and not _all_left_behind(turn, members, RepairStuck()):
            form(turn, RepairStuck())
    elif members and (gone or stopped or _late(turn, world, members) or _was_kept_out(turn, world, members)):
        # While a host may be lost, a new mpirun would only exit again.
        if turn.seen.hosts_known and turn.now >= run.backoff.again and network_is_whole(turn):
            how = Loss.GONE if gone else Loss.STOPPED if stopped else Loss.LATE
            _mpirun_lost(turn, world, members, how)
    elif lost and run.only_left_out(rank for rank in members if rank not in lost):
        # Whoever is left was cut off from those that have lost their couriers, and these have gone on.
        if turn.seen.hosts_known and network_is_whole(turn):
            form(turn, RepairStuck())
    elif len(lost) < len(members):
        _kill_lost(turn, lost)


def prepare_next(turn: Turn) -> None:
    """Open a world with the replacements while they are still loading, and then switch over.

    If more workers die meanwhile, that was in vain; then the next world waits until all are ready.
    """
    run, everyone = turn.run, [rank for rank in turn.run.present() if not rank.doubtful]
    if run.world is None or run.over():
        _abandon(turn)
    elif run.next is None:
        joining = [rank for rank in everyone if rank.joining]
        if (
            joining
            and _may_prepare(turn, run.world)
            and all(rank.seen.ready or (run.eager and rank.seen.process) for rank in joining)
        ):
            for rank in joining:
                rank.joining = False
            run.next = _open(turn, Joined(tuple(rank.number for rank in joining)))
    elif run.next.members != {rank.number: rank.seen.process for rank in everyone}:
        _abandon(turn)
        network_is_whole(turn)  # a partition may be the cause, and is handled when the answer arrives
    elif run.next.number in turn.seen.ended_worlds or _late(turn, run.next, everyone):
        _unready(turn, run.next)
        _abandon(turn)
        network_is_whole(turn)
    elif all(rank.seen.ready and rank.seen.standby == run.next.number for rank in everyone):
        if _all_left_behind(turn, everyone, run.next.reason):
            return
        run.eager, run.unready = True, 0
        turn.do(KillWorld(run.world.number))
        world, run.next = run.next, None
        _enter(turn, world)


def network_is_whole(turn: Turn) -> bool:
    """Whether mpirun's network reaches every host, if that is known in this turn; otherwise start a probe."""
    run = turn.run
    if turn.seen.unreachable is not None:
        return not turn.seen.unreachable
    hosts = {rank.host for rank in run.living()} - run.config.here
    if not hosts:
        return True
    if not run.probing and not run.cut_off:
        run.probing = True
        turn.do(Probe(tuple(sorted(hosts))))
    return False


def _form_first(turn: Turn) -> None:
    run = turn.run
    # Where no worker has the state any more, there is nobody to join: a replacement begins the run as the others do.
    waiting = [rank for rank in run.present() if run.fresh or not rank.joining or run.config.policy.awaits(rank)]
    if run.fresh and run.missing():
        return  # the run begins with all workers, or not at all
    if not waiting or not turn.seen.hosts_known or not all(rank.seen.ready for rank in waiting):
        return
    if run.fresh and run.stepped and run.job == 1:
        # Whoever had done those steps was on a host that rebooted before this launcher had seen it.
        run.halt_reason = StateLost()
        return
    # By a world whose launcher was killed before it could do this, or whose other members are dead.
    left_out = [rank for rank in waiting if rank.seen.active and run.left_out(rank)]
    if left_out:
        # One host's agent may have been heard later than another's, but not since all have ended their couriers.
        if run.cleared < turn.now:
            if run.only_left_out(run.living()):
                run.halt_reason = StateLost()
            for rank in left_out:
                turn.kill(rank, Cause.LOST_COURIER)
        return
    if not run.worlds or network_is_whole(turn):  # the network may be what ended the previous world
        for rank in waiting:
            rank.joining = False
        reason, run.reason = run.reason or (Begin(run.job) if run.fresh else Restarted()), None
        form(turn, reason)


def _open(turn: Turn, reason: WorldReason) -> World:
    run = turn.run
    members = [rank for rank in run.present() if not rank.joining]
    hosts: dict[str, dict[int, int]] = {}
    for rank in members:
        hosts.setdefault(rank.host, {})[rank.number] = rank.seen.process
    run.worlds += 1
    turn.do(OpenWorld(run.worlds, hosts))
    return World(run.worlds, {rank.number: rank.seen.process for rank in members}, reason, turn.now)


def _enter(turn: Turn, world: World) -> None:
    run = turn.run
    run.world = world
    ranks, wanted = tuple(sorted(world.members)), run.config.workers
    turn.do(EnterWorld(world.number, run.fresh, world.reason, ranks, run.job, wanted))


def _abandon(turn: Turn) -> None:
    """Abandon the world that is being prepared."""
    run = turn.run
    if run.next is not None:
        turn.do(KillWorld(run.next.number))
        run.next, run.eager = None, False
        for rank in run.living():
            rank.joining = run.world is not None and not run.world.has(rank)


def _unready(turn: Turn, world: World) -> None:
    """A world for newcomers did not come up: the present one stays, and another is tried with growing pauses."""
    run = turn.run
    run.unready += 1
    run.prepare_at = turn.now + start_pause(run.unready)
    if run.unready == TOLD and isinstance(world.reason, Joined):
        turn.say(JoinFailed(world.reason.ranks))


def _all_left_behind(turn: Turn, members: list[Rank], reason: WorldReason) -> bool:
    """End the world if all that took part in its last sum seem to be dead: what to do is decided at the next look."""
    if not turn.run.only_left_out(members):
        return False
    end_world(turn)
    turn.run.reason = reason
    return True


def _mpirun_lost(turn: Turn, world: World, members: list[Rank], how: Loss) -> None:
    run = turn.run
    turn.do(NoteMpirunLost(how))
    came_up = any(rank.seen.standby == world.number for rank in members)
    run.backoff.failed(max(rank.seen.step for rank in members), came_up=came_up, now=turn.now)
    if run.backoff.fruitless >= RESTARTS and run.fresh and run.job == 1:
        run.phase = Phase.FINISHED
        turn.do(Finish(MISUSED, no_world=True))
    elif run.backoff.hopeless is not None:
        run.halt_reason = run.backoff.hopeless
    else:
        reason = CouriersStopped() if how is Loss.STOPPED else MpirunLost()
        if not _all_left_behind(turn, members, reason):
            run.config.policy.after_mpirun(turn, reason)


def _awaits_exit(turn: Turn) -> bool:
    """True while a worker is exiting and its status unknown (at most EXIT_WAIT): what follows from it may suffice."""
    run = turn.run
    if len(run.present()) == len(run.living()):
        run.exiting_since = None
        return False
    if run.exiting_since is None:
        run.exiting_since = turn.now
    return turn.now - run.exiting_since < EXIT_WAIT


def _may_prepare(turn: Turn, present: World) -> bool:
    """Whether the next world may be opened now, for those that are to join."""
    run = turn.run
    due = any(rank.state is RankState.DUE and not rank.misses for rank in run.ranks.values())
    # Of two worlds that come up at once, nobody could tell which one a courier that has come up belongs to.
    return not due and turn.now >= run.prepare_at and _is_up(present, run.present())


def _is_up(world: World, ranks: list[Rank]) -> bool:
    """Whether the couriers of all these ranks that are in this world have come up."""
    return all(rank.seen.standby >= world.number for rank in ranks if world.has(rank))


def _settled(turn: Turn, world: World, members: list[Rank]) -> bool:
    """Whether the couriers have had time to meet: the first ones wait for the last, which come up seconds later."""
    if world.came_up is None and _is_up(world, members):
        world.came_up = turn.now
    return turn.now - (world.came_up if world.came_up is not None else world.opened + WORLD_START / 2) > REPAIR


def _late(turn: Turn, world: World, members: list[Rank]) -> bool:
    """Whether some courier has not come up in time, and will not any more."""
    return not _is_up(world, members) and turn.now - world.opened > WORLD_START


def _was_kept_out(turn: Turn, world: World, members: list[Rank]) -> bool:
    """Whether the agent of some member was lost before it let that member's courier in, and another one is there."""
    adopted = {change.host for change in turn.seen.changes}  # in this turn: nothing is seen of their workers yet
    return any(rank.raw.world < world.number for rank in members if rank.host not in adopted)


def _was_left_out(turn: Turn, world: World, lost: Rank) -> bool:
    """Whether others have summed without a worker whose courier is lost, after their group had shrunk."""
    sums = [rank.seen.summed_shrink for rank in turn.run.ranks.values() if rank.seen.summed_world == world.number]
    return max(sums, default=0) > lost.seen.shrink


def _kill_lost(turn: Turn, lost: list[Rank]) -> None:
    """Kill the worker of a courier that died alone: the others have continued without it."""
    for rank in turn.run.living():
        if rank not in lost:
            rank.courier_lost = 0.0
        elif not rank.courier_lost:
            rank.courier_lost = turn.now
        elif turn.now - rank.courier_lost > SETTLE:
            turn.kill(rank, Cause.LOST_COURIER)
