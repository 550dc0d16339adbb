"""Hosts that are lost, come back, or are cut off by a network partition.

Two halves of a partitioned network must never both continue. A lost host may merely be cut off, so its workers count
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
    """Handle changes of hosts, and the answers to probes of the network."""
    for change in turn.seen.changes:
        match change.how:
            case HostChange.LOST:
                _lose(turn, change.host)
            case HostChange.AGENT_REPLACED:
                _agent_replaced(turn, change.host)
            case HostChange.BACK:
                _take_back(turn, change.host)
    _mind_expelled(turn)
    run = turn.run
    if turn.seen.unreachable is not None:
        run.probing = False
        run.cut_off, run.cut_off_at = turn.seen.unreachable, turn.now
    # A host that did not answer the probe may be lost entirely: then its agent could neither halt nor kill its workers.
    # So wait until its agent has been heard from after the probe.
    if run.cut_off and turn.now - run.cut_off_at > HOST_QUIET:
        hosts, run.cut_off = run.cut_off, frozenset()
        if not run.expelling and turn.seen.hosts_known:
            _split(turn, set(hosts))


def _agent_replaced(turn: Turn, host: str) -> None:
    """Have a new agent take over the live workers of a host; orders to the lost agent may not have been carried out."""
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
    """Use a lost host that answers again: kill its old workers, and start new ones if the policy says so."""
    run, there = turn.run, turn.run.on([host])
    run.unsure -= {rank.number for rank in there}
    turn.do(Adopt(host, tuple(rank.number for rank in there)), Remove((host,)))
    turn.say(HostBack(host))
    if run.config.policy.takes_hosts_back and run.active() and run.halt_reason is None:
        for rank in there:
            rank.joining, rank.failures = True, 0
            turn.start(rank)


def _lose(turn: Turn, host: str) -> None:
    """Handle the loss of a host: all its workers are dead, or cannot be reached."""
    run = turn.run
    members = _holders(turn)
    if run.phase is Phase.RESTARTING:
        members |= run.restarting  # workers that we killed ourselves still count towards a majority
    gone = _write_off(turn, host)
    turn.say(HostLost(host, tuple(sorted(gone))))
    untouched = run.world is not None and not gone & run.world.members.keys()  # all its workers were only starting
    if not run.over() and not untouched:
        run.unsure |= members & gone
        _continue_without(turn, members - gone, HostGone(host))


def _holders(turn: Turn) -> set[int]:
    """Return the ranks that hold the state, or may by now: members of the world that can no longer be observed.

    If any worker is seen with the state, an unobserved member may just have received it too, as far as the job has
    room for more workers: a spare has not. Members that are seen without it count in the same way, so that two equal
    sides count alike.
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


def _write_off(turn: Turn, host: str) -> set[int]:
    """Write off all workers of a host; return their ranks."""
    there = turn.run.on([host])
    turn.do(NoteHostLost(host, tuple(replace(rank.seen, rank=rank.number) for rank in there)))
    for rank in there:
        rank.write_off()
    return {rank.number for rank in there}


def _continue_without(turn: Turn, left: set[int], reason: WorldReason) -> None:
    """Continue without the lost members if the rest are a majority; some of the lost may be alive."""
    run = turn.run
    members = left | run.unsure
    if members and not has_majority(left, members):
        run.halt_reason = Minority(tuple(sorted(left)), tuple(sorted(members)))
    else:
        run.config.policy.after_hosts(turn, reason)


def _split(turn: Turn, away: set[str]) -> None:
    """Handle a network partition: agents answer from both sides, so kill the workers of the smaller side.

    mpirun is on the launcher's side: if that is the smaller side, the larger one halts with a checkpoint.
    """
    run = turn.run
    away &= {rank.host for rank in run.living()}
    if not away or run.halt_reason is not None or run.over():
        return
    everyone = run.active() if run.moved and not run.fresh else run.living()  # who has the first state is chance
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
    """Continue without the hosts on the other side once all of them have answered."""
    run = turn.run
    run.expelled |= {host: sure for host, sure in turn.seen.expelled.items() if host in run.expelling}
    if not run.expelling or run.expelling - run.expelled.keys():
        return
    active = _holders(turn)
    hosts, sure = tuple(sorted(run.expelling)), all(run.expelled.values())
    for host in hosts:
        gone = _write_off(turn, host)
        if not run.expelled[host]:
            run.unsure |= active & gone
        active -= gone
    run.expelling, run.expelled = set(), {}
    if sure and not run.moved and not run.active():
        run.fresh = True  # those that had the first state are dead, and did no step with it: the others begin anew
        for rank in run.ranks.values():
            rank.forget()
    if not run.over():
        _continue_without(turn, active, NetworkSplit(hosts))
