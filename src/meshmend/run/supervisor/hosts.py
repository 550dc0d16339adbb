"""Hosts that are lost, come back, or are cut off by a network that fell in two.

Two halves of a broken network must never both continue. A host that is lost may only be cut off, so its workers count
as possibly alive (`unsure`) until the others have agreed to continue without them, and only a majority may do that.
"""

from __future__ import annotations

from dataclasses import replace

from meshmend.base.clocks import HOST_QUIET
from meshmend.job.protocol import has_majority
from meshmend.run.supervisor.actions import Adopt, Expel, Halt, Kill, NoteHostLost, Remove
from meshmend.run.supervisor.halting import begin_halt
from meshmend.run.supervisor.messages import (
    AgentReplaced,
    HostBack,
    HostGone,
    HostLost,
    Minority,
    NetworkSplit,
    Split,
    WorldReason,
    WrongSide,
)
from meshmend.run.supervisor.observations import Cause, HostChange
from meshmend.run.supervisor.ranks import RankState
from meshmend.run.supervisor.state import Phase, Turn
from meshmend.run.supervisor.worlds import end_world


def mind_hosts(turn: Turn) -> None:
    """Take in what became of hosts, and the answers about the network."""
    for host, change in turn.seen.changes:
        match change:
            case HostChange.LOST:
                _lose(turn, host)
            case HostChange.AGENT_REPLACED:
                _agent_replaced(turn, host)
            case HostChange.BACK:
                _take_back(turn, host)
    _mind_expelled(turn)
    run = turn.run
    if turn.seen.unreachable is not None:
        run.probing = False
        run.cut_off, run.cut_off_at = turn.seen.unreachable, turn.now
    # A host that did not answer may be lost as a whole: then its agent could not have its workers halted or killed. So
    # it has to be heard from after that.
    if run.cut_off and turn.now - run.cut_off_at > HOST_QUIET:
        hosts, run.cut_off = run.cut_off, frozenset()
        if not run.expelling and turn.seen.hosts_known:
            _split(turn, set(hosts))


def _agent_replaced(turn: Turn, host: str) -> None:
    """Another agent takes over the workers that live there; what the lost one was told may not have been done."""
    there = turn.run.on([host])
    turn.run.unsure -= {rank.number for rank in there}
    turn.say(AgentReplaced(host))
    turn.do(Adopt(host, tuple(rank.number for rank in there)))
    for rank in there:
        rank.ordered, rank.released = turn.now, None
        if rank.state is RankState.EXITING and rank.killed is not Cause.NONE:
            turn.do(Kill(rank.number, host, rank.killed))
    if turn.run.halted is not None and turn.run.writer is not None:
        turn.do(Halt(turn.run.writer))


def _take_back(turn: Turn, host: str) -> None:
    """A lost host answers again: its old workers are killed, and new ones join if the policy says so."""
    run, there = turn.run, turn.run.on([host])
    run.unsure -= {rank.number for rank in there}
    turn.do(Adopt(host, tuple(rank.number for rank in there)), Remove((host,)))
    turn.say(HostBack(host))
    if run.config.policy.takes_hosts_back and run.active() and run.halt_reason is None:
        for rank in there:
            rank.joining, rank.failures = True, 0
            turn.start(rank)


def _lose(turn: Turn, host: str) -> None:
    """All workers of a host are dead, or cannot be reached."""
    run = turn.run
    members = _holders(turn)
    if run.phase is Phase.RESTARTING:
        members |= run.restarting  # those that we killed meanwhile cannot be missing to a majority
    gone = _bury(turn, host)
    turn.say(HostLost(host, tuple(sorted(gone))))
    if not run.over():
        run.unsure |= members & gone
        _continue_without(turn, members - gone, HostGone(host))


def _holders(turn: Turn) -> set[int]:
    """The ranks that hold the state, or may by now: members of the world that cannot be seen any more.

    Where somebody is seen with the state, a member that nobody sees may just have got it too, as far as the job has
    room for more workers: a spare has not. Those that are seen without it count alike, or equal sides would not.
    """
    run = turn.run
    members = {rank.number for rank in run.living() if run.world is not None and run.world.has(rank)}
    if run.fresh and members:
        return members
    active = {rank.number for rank in run.active()}
    idle = sorted(members - active)
    if all(run.ranks[number].host in turn.seen.reachable for number in idle):
        return active
    return active | {*idle[: max(0, run.config.workers - len(active))]}


def _bury(turn: Turn, host: str) -> set[int]:
    """None of a host's workers counts any more; their ranks."""
    there = turn.run.on([host])
    turn.do(NoteHostLost(host, tuple(replace(rank.seen, rank=rank.number) for rank in there)))
    for rank in there:
        rank.bury()
    return {rank.number for rank in there}


def _continue_without(turn: Turn, left: set[int], reason: WorldReason) -> None:
    """Continue without members that are gone, if those left are a majority; some of the others may not be dead."""
    run = turn.run
    members = left | run.unsure
    if members and not has_majority(left, members):
        run.halt_reason = Minority(tuple(sorted(left)), tuple(sorted(members)))
    else:
        run.config.policy.after_hosts(turn, reason)


def _split(turn: Turn, away: set[str]) -> None:
    """The network fell in two: agents answer from both sides, so the workers of the smaller side are killed.

    mpirun is on the launcher's side: where that is the smaller one, the other halts with a checkpoint.
    """
    run = turn.run
    away &= {rank.host for rank in run.living()}
    if not away or run.halt_reason is not None or run.over():
        return
    everyone = run.living() if run.fresh else run.active()
    far = {rank.number for rank in everyone if rank.host in away}
    near = {rank.number for rank in everyone} - far
    hosts = tuple(sorted(away))
    if has_majority(near, near | far):
        turn.say(Split(hosts, tuple(sorted(far)), tuple(sorted(near))))
        run.expelling = away
        turn.do(*(Expel(host) for host in hosts))
        return
    run.halt_reason = WrongSide(hosts, tuple(sorted(near)), tuple(sorted(far)))
    end_world(turn)
    for rank in run.living():
        if rank.host not in away:
            turn.kill(rank, Cause.CUT_OFF)
    begin_halt(turn)


def _mind_expelled(turn: Turn) -> None:
    """When every host on the other side has answered, continue without them."""
    run = turn.run
    run.expelled |= {host: sure for host, sure in turn.seen.expelled.items() if host in run.expelling}
    if not run.expelling or run.expelling - run.expelled.keys():
        return
    active = _holders(turn)
    hosts = tuple(sorted(run.expelling))
    for host in hosts:
        gone = _bury(turn, host)
        if not run.expelled[host]:
            run.unsure |= active & gone
        active -= gone
    run.expelling, run.expelled = set(), {}
    if not run.over():
        _continue_without(turn, active, NetworkSplit(hosts))
