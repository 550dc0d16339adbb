"""Hosts that are added to a live run: their workers are new ranks, which join the workers that train.

A host that was only just added must not cost the run anything. So it waits until the run has begun: before that, a
worker that fails ends the run, because then all of them probably would.
"""

from __future__ import annotations

from dataclasses import replace

from meshmend.run.supervisor.messages import HostAdded
from meshmend.run.supervisor.ranks import Rank
from meshmend.run.supervisor.state import Phase, Turn


def mind_new_hosts(turn: Turn) -> None:
    """Take in the hosts that were added, as soon as there are workers that theirs can join."""
    run = turn.run
    trains = run.phase is Phase.RUNNING and run.begun and run.active() and not run.over()
    # In order: the ranks of a host follow from those before it, for another launcher too.
    while trains and run.halt_reason is None and run.new_hosts and run.new_hosts[0][0] in turn.seen.reachable:
        _take_in(turn, *run.new_hosts.pop(0))


def _take_in(turn: Turn, host: str, workers: int) -> None:
    """Make a host part of the run, with so many new workers."""
    run = turn.run
    if host in run.config.hosts:
        return  # it was added twice
    first = len(run.config.hosts)
    ranks = tuple(range(first, first + workers))
    run.config = replace(
        run.config, hosts=(*run.config.hosts, *(host for _ in ranks)), workers=run.config.workers + workers
    )
    turn.say(HostAdded(host, ranks))
    for number in ranks:
        rank = run.ranks[number] = Rank(number, host, joining=True)
        turn.start(rank)
