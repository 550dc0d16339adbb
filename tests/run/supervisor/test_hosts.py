"""Hosts that are lost, come back, or are cut off by a network that fell in two."""

from __future__ import annotations

from itertools import product
from typing import Protocol

import pytest

from meshmend.base.status import DONE
from meshmend.job.protocol import has_majority, may_go_on
from meshmend.run.supervisor.actions import Adopt, EnterWorld, Expel, Finish, Kill, NoteHostLost, Probe, Remove
from meshmend.run.supervisor.messages import (
    AgentReplaced,
    Halting,
    HostBack,
    HostGone,
    HostLost,
    Minority,
    NetworkSplit,
    Split,
    WrongSide,
)
from meshmend.run.supervisor.observations import STOPPED, Cause
from meshmend.run.supervisor.ranks import RankState
from meshmend.run.supervisor.state import Phase
from tests.run.supervisor.story import Run, planned, training


class Change(Protocol):
    """A method of `Run` by which a host has another agent."""

    def __call__(self, run: Run, /, *hosts: str, attempt: int) -> Run: ...


def loses(run: Run, *hosts: str) -> None:
    run.loses(*hosts).turn()


def splits(run: Run, hosts: set[str], *, sure: bool = True) -> None:
    """Agents answer on these hosts, but mpirun cannot reach them; `sure`: what they are told is certainly done."""
    expel = run.cut_off(*hosts).of(Expel)
    if expel:
        run.reachable -= {one.host for one in expel}
        run.lost |= {one.host for one in expel}
        run.turn(expelled={one.host: sure for one in expel})


def goes_on(run: Run) -> bool:
    return run.state.phase is Phase.RUNNING and run.halting is None and run.finish is None


@pytest.mark.parametrize("sure", [True, False])
@pytest.mark.parametrize("first", ["lost", "split"])
@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_of_a_network_in_parts_one_goes_on_at_most(ranks: int, first: str, sure: bool) -> None:
    """Ranks, one per host, are near the launcher, far from it, or behind a break where no agent answers: all ways."""
    hosts = [[rank] for rank in range(ranks)]
    for parts in product(("near", "far", "lost"), repeat=ranks):
        run = training(" ".join(f"h{rank}" for rank in range(ranks)), "shrink")
        near, far, lost = ({rank for rank in range(ranks) if parts[rank] == which} for which in ("near", "far", "lost"))
        for what in ("lost", "split") if first == "lost" else ("split", "lost"):
            if what == "lost" and lost:
                loses(run, *(f"h{rank}" for rank in lost))
            elif what == "split" and far:
                splits(run, {f"h{rank}" for rank in far}, sure=sure)
        behind = lost if sure else lost | far
        there = near if first == "lost" else near | lost  # when the split is judged
        most = not far or has_majority(there, there | far)
        assert goes_on(run) == (bool(near) and most and (not behind or has_majority(near, near | behind))), parts
        gone = {rank.number for rank in run.state.ranks.values() if not rank.alive or rank.killed is not Cause.NONE}
        if goes_on(run):
            assert gone == far | lost, parts
        for some in (far, lost):  # couriers of the world that was, by themselves
            alone = may_go_on(some, some, [range(ranks)], hosts)
            dead = far if sure else set()
            assert not (goes_on(run) and alone and not some <= dead), (parts, some)


def test_the_side_without_mpirun_halts_with_a_checkpoint_where_it_is_the_larger() -> None:
    run = training("a b b", here="a")
    run.ended.add(1)
    assert run.turn().of(Probe) == [Probe(("b",))]
    orders = run.cut_off("b")
    reason = WrongSide(("b",), near=(0,), far=(1, 2))
    assert orders.killed == [(0, Cause.CUT_OFF)] and orders.said == [Halting(reason, checkpoint=True)]
    assert run.state.writer == 1


def test_the_smaller_side_is_expelled_and_the_larger_continues() -> None:
    run = training("a a b", here="a")
    run.ended.add(1)
    run.turn()
    orders = run.cut_off("b")
    assert orders.said == [Split(("b",), far=(2,), near=(0, 1))] and orders.of(Expel) == [Expel("b")]
    run.reachable.discard("b")
    assert run.turns(1) == []  # until it is answered
    orders = run.turn(expelled={"b": True})
    assert [(lost.host, [one.rank for one in lost.seen]) for lost in orders.of(NoteHostLost)] == [("b", [2])]
    run.lost.add("b")
    orders += run.turn()
    assert orders.of(EnterWorld) == [EnterWorld(2, fresh=False, reason=NetworkSplit(("b",)), ranks=(0, 1))]


def test_a_probe_is_asked_for_once() -> None:
    run = training("a b", here="a")
    run.ended.add(1)
    assert run.turns(2).of(Probe) == [Probe(("b",))]
    assert run.turn(unreachable=frozenset()).opened == [[0, 1]]


def test_the_larger_side_continues_without_a_lost_host() -> None:
    run = training("a a b")
    orders = run.loses("b").turn()
    assert orders.said == [HostLost("b", (2,))] and [lost.host for lost in orders.of(NoteHostLost)] == ["b"]
    assert orders.of(EnterWorld) == [EnterWorld(2, fresh=False, reason=HostGone("b"), ranks=(0, 1))]
    assert run.state.unsure == {2}  # it may only be cut off
    run.comes_up().trains(6).turn()
    assert run.state.unsure == set()  # the others have agreed to continue without it


def test_the_smaller_side_halts() -> None:
    run = training("a b b")
    run.loses("b").turn()
    assert run.halting == Minority((0,), (0, 1, 2))
    assert run.orders.opened == []


def test_a_second_host_that_is_lost_before_the_others_agreed_counts_with_the_first() -> None:
    run = training("a b c")
    run.loses("c").turn()
    run.loses("b").turn()
    assert run.halting == Minority((0,), (0, 1, 2))
    run = training("a b c")
    run.loses("c").turn()
    run.comes_up().trains(6).turn()
    run.loses("b").turn()
    assert run.halting is None  # of two that agreed, the first may continue alone


def test_a_host_that_is_lost_takes_along_the_worker_that_was_to_be_started_there() -> None:
    run = training("a a b")
    run.dies(2).turn()
    assert run.state.ranks[2].state is RankState.DUE
    run.loses("b").turn()
    assert run.state.ranks[2].state is RankState.DEAD
    assert run.turn(after=1.5).started == [] and run.halting is None  # there is no agent that could


def test_a_worker_that_dies_on_a_host_that_is_lost_is_not_replaced_there() -> None:
    run = training("a a b")
    run.dies(2)
    run.lost.add("b")
    run.turn()
    assert run.turn(after=1.5).started == []


def test_a_host_that_is_lost_after_the_last_step_takes_nothing_away() -> None:
    """The others have ended well, and the one that is gone had nothing left to do."""
    run = training("a a b")
    run.see(0, 1, over=True, left=True).dies(0, 1, status=0)
    run.loses("b").turn()
    assert run.state.living() == [] and run.halting is None and run.finish == Finish(DONE)


def test_a_host_that_comes_back_is_cleared_and_used_again() -> None:
    run = training("a a b")
    run.loses("b").turn()
    run.comes_up().trains(6).turn()
    orders = run.finds("b").turn()
    assert orders[:2] == [Adopt("b", (2,)), Remove(("b",))]
    assert orders.said == [HostBack("b")] and orders.started == [2]


@pytest.mark.parametrize("policy", ["shrink", "spare"])
def test_a_host_that_comes_back_is_not_used_where_nobody_is_started(policy: str) -> None:
    run = training("a a b", policy)
    run.loses("b").turn()
    run.comes_up().trains(6).turn()
    orders = run.finds("b").turn()
    assert orders.of(Remove) == [Remove(("b",))] and orders.started == []


def test_another_agent_takes_over_the_workers_and_carries_out_what_the_lost_one_was_told() -> None:
    run = training("a b b")
    run.see(2, still=STOPPED).turn()
    assert run.orders.killed == [(2, Cause.STOPPED)]
    orders = run.replaces_agent("b").turn()
    assert orders.said == [AgentReplaced("b")]
    assert orders.of(Adopt) == [Adopt("b", (1, 2))] and orders.of(Kill) == [Kill(2, "b", Cause.STOPPED)]
    assert orders.opened == [] and orders.started == []


@pytest.mark.parametrize("change", [Run.finds, Run.replaces_agent])
def test_orders_to_a_new_agent_are_of_no_earlier_attempt_than_the_workers_it_has_found(change: Change) -> None:
    """A launcher that attached where a full disk kept the last attempt out of the events learns of it there."""
    run = training("a a b")
    run.see(2, still=STOPPED).turn()
    if change is Run.finds:
        run.loses("b").turn()
    change(run, "b", attempt=2)
    assert run.turn().of(Adopt) and run.state.attempt == 2  # the epoch of what is ordered in this turn


def test_an_attached_run_counts_those_it_cannot_reach() -> None:
    old = training("a b b")
    run = planned("a b b", attached=True)
    run.seen, run.reachable, run.sure = old.seen, {"a"}, False
    assert run.turn().of(Adopt) == [Adopt("a", (0,))]
    run.turn()
    assert run.state.unsure == {1, 2} and run.orders.started == []
    run.sure = True
    run.loses("b").turn()
    assert run.halting == Minority((0,), (0, 1, 2))


def test_workers_whose_agent_is_there_again_are_not_unsure_any_more() -> None:
    old = training("a b b")
    run = planned("a b b", attached=True)
    run.seen, run.reachable, run.sure = old.seen, {"a"}, False
    run.turn()
    run.turn()
    assert run.state.unsure == {1, 2}
    run.replaces_agent("b").turn()
    assert run.state.unsure == set()


def test_spares_do_not_count_in_a_majority() -> None:
    run = training("a b b", "spare", spares=2, here="a")
    run.ended.add(1)
    run.turn()
    assert run.cut_off("b").said == [Split(("b",), far=(), near=(0,))]
