"""A run that begins without workers it was asked for: it ends, unless somebody else killed them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshmend.base.status import FAILED, HALTED, MISUSED
from meshmend.run.supervisor.actions import KillWorld
from meshmend.run.supervisor.messages import BadStart, GivenUp, Halting
from meshmend.run.supervisor.observations import WorkerError
from meshmend.run.supervisor.state import RESTARTS
from tests.run.supervisor.story import Run, begun, planned, training

MISTAKE = WorkerError(0, "other shapes", "other shapes", mistake=True)


def errs(run: Run, rank: int) -> Run:
    """A worker ends because of a mistake."""
    run.dies(rank, status=1)
    run.seen[rank] = replace(run.seen[rank], error=MISTAKE)
    return run


def ends(run: Run) -> int:
    """The others stop, and the one that is to write a checkpoint does; the status of the run."""
    for rank, seen in run.seen.items():
        if seen.status is None:
            run.dies(rank, status=HALTED)
    run.turn()
    assert run.finish is not None
    return run.finish.status


@pytest.mark.parametrize("policy", ["replace", "shrink", "restart", "checkpoint"])
def test_a_mistake_before_the_job_is_open_ends_the_run_when_the_others_have_opened_theirs(policy: str) -> None:
    run = planned("a a a", policy)
    run.turn()
    errs(run, 1).turn()
    assert run.halting is None  # the others may make the same mistake
    run.opens(0, 2).turn()
    assert run.halting == BadStart((1,), 3) and run.orders.opened == []
    assert Halting(run.halting, checkpoint=False) in run.orders.said
    assert ends(run) == FAILED


def test_a_mistake_that_all_make_is_a_wrong_command() -> None:
    run = planned("a a")
    run.turn()
    errs(run, 0).turn()
    errs(run, 1).turn()
    assert run.finish is not None and run.finish.status == MISUSED


@pytest.mark.parametrize("policy", ["replace", "shrink", "spare", "restart", "checkpoint"])
def test_a_mistake_in_the_first_step_ends_the_run_when_the_others_have_done_it(policy: str) -> None:
    run = begun("a a a", policy, spares=1)
    run.comes_up().trains(0).see(2, active=False).turn()
    assert errs(run, 1).turn().started == [] and run.halting is None
    run.see(0, step=1).turn()
    assert run.halting == BadStart((1,), 3)
    assert ends(run) == FAILED


def test_a_short_job_that_the_others_have_done_meanwhile_is_not_done() -> None:
    run = begun("a a", "shrink")
    run.comes_up().trains(0).turn()
    errs(run, 1).see(0, step=3, over=True).turn()
    assert run.halting is None
    run.dies(0, status=0).turn()
    assert run.finish is not None and run.finish.status == FAILED and run.finish.reason == BadStart((1,), 2)


def test_an_exception_in_the_first_step_is_a_death_like_others() -> None:
    run = begun("a a", "shrink")
    run.comes_up().trains(0).turn()
    run.dies(1, status=1, error="ValueError: no").turn()
    run.see(0, step=1).turn()
    assert run.halting is None


def test_one_that_is_given_up_at_the_start_is_not_done_without() -> None:
    run = begun("a a")
    run.comes_up().trains(0).turn()
    for step in range(RESTARTS + 1):
        run.dies(1, status=1, error="RuntimeError: no such device").turn()
        run.see(0, step=1 + step)
        if run.turn(after=1.5).started:
            run.opens(1).turn()
            run.comes_up().turn()
            run.comes_up().trains(1 + step).turn()
    assert GivenUp(1, RESTARTS) in run.orders.said and run.halting == BadStart((1,), 2)


def test_one_that_is_killed_before_the_run_begins_is_started_again_and_waited_for() -> None:
    run = planned("a a")
    run.turn()
    run.opens(0).dies(1)
    assert run.turn().started == [1]
    assert run.turn().opened == []
    assert run.opens(1).turn().opened == [[0, 1]]
    assert run.halting is None


def test_one_that_is_killed_in_the_first_world_is_waited_for_too() -> None:
    run = begun("a a")
    run.comes_up(0).dies(1)
    orders = run.turn()
    assert orders.started == [1] and orders.of(KillWorld) == [KillWorld(1)]
    assert run.turn().opened == []
    assert run.opens(1).turn().opened == [[0, 1]]


def test_after_the_first_step_a_mistake_is_a_death_like_others() -> None:
    run = training("a a", "shrink")
    errs(run, 1).turn()
    run.turns(2)
    assert run.halting is None


def test_a_spare_that_fails_long_after_the_start_ends_nothing() -> None:
    run = training("a a a", "spare", spares=1)
    errs(run, 2).turn()
    run.see(0, 1, step=9).turn()
    assert run.halting is None
