"""Hosts that are added while a run goes on."""

from __future__ import annotations

import pytest

from meshmend.run.supervisor import POLICIES
from meshmend.run.supervisor.actions import EnterWorld
from meshmend.run.supervisor.messages import HostAdded, HostLost, Joined
from meshmend.run.supervisor.observations import StopSignal
from tests.run.supervisor.story import Run, begun, planned, training


def adds(run: Run, host: str, workers: int) -> Run:
    run.reachable.add(host)
    run.turn(added=((host, workers),))
    return run


@pytest.mark.parametrize("policy", POLICIES)
def test_the_workers_of_a_new_host_join_those_that_train(policy: str) -> None:
    run = training("a b b", policy, spares=int(policy == "spare"))
    adds(run, "c", 2)
    assert run.orders.said == [HostAdded("c", (3, 4))] and run.orders.started == [3, 4]
    run.opens(3, 4).turn()
    assert run.orders.opened == [[0, 1, 2, 3, 4]]
    run.comes_up().turn()
    entered = run.orders.of(EnterWorld)[-1]
    assert entered.reason == Joined((3, 4)) and entered.wanted == 5 - (policy == "spare")


def test_a_host_that_comes_before_the_first_step_waits_for_it() -> None:
    """Its workers might fail, and a failure before the first step ends a run."""
    run = begun("a b")
    adds(run, "c", 1)
    assert 2 not in run.orders.started
    run.comes_up().trains(0).turn()
    run.trains(1).turns(0.1)
    assert run.orders.started[-1] == 2


def test_what_is_told_in_the_first_turn_is_not_lost() -> None:
    run = planned("a a")
    adds(run, "c", 1).opens().turn()
    run.comes_up().trains(0).turn()
    run.trains(1).turns(0.1)
    assert run.orders.said == [HostAdded("c", (2,))]


def test_a_host_is_added_once() -> None:
    run = training("a b")
    adds(adds(adds(run, "c", 1), "c", 2), "b", 1)
    assert run.orders.started == [2] and [*run.state.config.hosts] == ["a", "b", "c"]


def test_a_host_that_is_lost_before_it_is_needed_joins_when_it_is_back() -> None:
    run = begun("a b")
    adds(run, "c", 1).loses("c").turn()
    run.comes_up().trains(0).turn()
    run.trains(1).turns(0.1)
    assert run.orders.said == [HostLost("c", ())]
    run.finds("c").turn()
    assert run.orders.started[-1] == 2


def test_a_host_that_dies_at_once_costs_nobody_anything() -> None:
    run = training("a b", "shrink")
    adds(run, "c", 3).loses("c").turn()
    run.turns(5)
    assert run.halting is None and run.orders.entered == [] and not run.state.unsure
    assert [rank.number for rank in run.state.living()] == [0, 1]


def test_a_run_that_ends_takes_nobody_in() -> None:
    run = training("a b")
    run.see(over=True).turn()
    adds(run, "c", 1)
    assert run.orders.started == []
    stopping = training("a b")
    stopping.turn(signal=StopSignal.TERMINATE)
    adds(stopping, "c", 1)
    assert stopping.orders.started == []
