"""What follows the end of a worker, and when another one is started in its rank."""

from __future__ import annotations

import pytest

from meshmend.base.clocks import HEAD_START
from meshmend.run.supervisor.actions import NoteDeath, Start
from meshmend.run.supervisor.messages import GivenUp, Replacing, WorkerEnded, WorkerRaised
from meshmend.run.supervisor.observations import Cause
from meshmend.run.supervisor.ranks import RankState
from meshmend.run.supervisor.state import RESTARTS
from tests.run.supervisor.story import KILLED, Orders, Run, training


@pytest.mark.parametrize("how", ["a step", "a second"])
def test_a_new_worker_is_started_after_the_step_that_was_cut_short(how: str) -> None:
    run = training("a a a", least=3)
    orders = run.dies(2).turn()
    (death,) = orders.of(NoteDeath)
    assert (death.seen.rank, death.seen.status, death.seen.cause) == (2, KILLED, Cause.NONE) and death.member
    assert orders.said == [WorkerEnded(2, KILLED, Cause.NONE), Replacing(2)]
    assert run.turn().started == [] and run.halting is None  # one that will be started is not missing
    if how == "a step":
        run.see(0, step=6)
    else:
        run.now += HEAD_START
    run.see(1, over=True)
    assert run.turn().started == []  # after the last step, nobody is needed
    run.see(1, over=False)
    assert run.turn().of(Start) == [Start(2, "a")]


def test_only_the_first_workers_of_an_attempt_begin_with_its_checkpoint() -> None:
    run = training("a a")
    run.state.resume = "step-3"
    run.dies(1).turn()
    assert run.turn(after=1.5).of(Start) == [Start(1, "a", resume="")]  # it gets the state from rank 0


def fails(run: Run, rank: int, *, status: int = 1) -> Orders:
    """Its worker ends, and another one is started where that is decided, and gets as far."""
    run.dies(rank, status=status, error="ZeroDivisionError" if status > 0 else "")
    orders = run.turn()
    orders += run.turn(after=1.5)
    if orders.started:
        run.opens(rank).turn()
        run.comes_up().turn()
        run.comes_up().trains(run.seen[0].step).turn()
    return orders


def test_a_worker_that_always_fails_is_not_replaced_for_ever() -> None:
    run = training("a a")
    for _ in range(RESTARTS):
        assert fails(run, 1).started == [1]
    orders = fails(run, 1)
    assert orders.started == [] and orders.said[-1] == GivenUp(1, RESTARTS)
    assert run.state.ranks[1].state is RankState.GIVEN_UP and run.halting is None


def test_a_worker_that_completed_steps_before_it_failed_is_replaced_again() -> None:
    run = training("a a")
    for step in range(6, 6 + 3 * RESTARTS):
        run.see(step=step).turn()
        assert fails(run, 1).started == [1]


def test_one_that_is_killed_while_it_takes_part_is_not_blamed() -> None:
    run = training("a a")
    for _ in range(3 * RESTARTS):
        assert fails(run, 1, status=KILLED).started == [1]


def test_an_exception_is_told_with_its_step() -> None:
    run = training("a a", "shrink", step=7)
    (message,) = run.dies(1, status=1, error="ValueError: no").turn().said
    assert isinstance(message, WorkerRaised) and (message.rank, message.error.step) == (1, 7)
    assert message.error.error == "ValueError: no"


def test_one_that_leaves_in_the_middle_is_told_how_to_leave() -> None:
    run = training("a a", "shrink")
    assert run.dies(1, status=0).turn().said == [WorkerEnded(1, 0, Cause.NONE, early=True)]


def test_ends_that_were_wanted_are_not_deaths() -> None:
    run = training("a a")
    run.see(over=True).dies(0, 1, status=0)
    assert run.turn().of(NoteDeath) == []
    assert run.orders.said == []


def test_a_death_is_dealt_with_once() -> None:
    run = training("a a a", "shrink")
    run.dies(1).turn()
    assert run.turns(3) == []


def test_a_start_that_its_agent_never_carried_out_is_ordered_again() -> None:
    run = training("a a b")
    run.dies(2).turn()
    old = run.seen[2]
    assert run.turn(after=1.5).started == [2]
    run.seen[2] = old  # the agent was lost before it could
    assert run.turn().started == [2]
    assert run.turn().started == []


def test_what_the_agent_still_sees_of_the_worker_before_is_no_death() -> None:
    run = training("a a")
    run.dies(1).turn()
    old = run.seen[1]
    run.turn(after=1.5)
    run.seen[1], new = old, run.seen[1]
    assert run.turn().of(NoteDeath) == []
    run.seen[1] = new
    run.turn()
    assert run.state.ranks[1].state is RankState.STARTING
