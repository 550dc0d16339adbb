"""Workers that cannot be started: a failed attempt, tried again, and never the others' loss."""

from __future__ import annotations

from itertools import pairwise

import pytest

from meshmend.base.clocks import START_BACKOFF
from meshmend.base.status import DONE, FAILED, MISUSED
from meshmend.run.supervisor.actions import Finish, Start
from meshmend.run.supervisor.messages import StartFailed
from meshmend.run.supervisor.observations import StopSignal
from meshmend.run.supervisor.state import RESTARTS
from tests.run.supervisor.story import NO_ROOM, Orders, planned, training
from tests.simulators.faults import Fault, Kind
from tests.simulators.model import Case
from tests.simulators.schedules import check
from tests.simulators.supervisor import simulate


def failed(orders: Orders) -> list[StartFailed]:
    return [said for said in orders.said if isinstance(said, StartFailed)]


def test_a_start_that_fails_is_tried_again_with_growing_pauses_and_said_once() -> None:
    run = training("a a a")
    run.full = {2}
    run.dies(2)
    run.turns(80.0, every=0.1)
    times = run.when(Start)
    pauses = [later - sooner for sooner, later in pairwise(times)]
    assert run.orders.started == [2] * len(times) and len(times) > 8
    assert [round(pause, 3) for pause in pauses] == sorted(round(pause, 3) for pause in pauses)
    assert pauses[-1] == pytest.approx(START_BACKOFF, abs=0.3)
    assert failed(run.orders) == [StartFailed(2, NO_ROOM)]
    assert run.halting is None and run.finish is None and run.orders.killed == []
    assert len(run.state.active()) == 2


def test_when_there_is_room_again_the_worker_joins_and_a_later_failure_is_said_again() -> None:
    run = training("a a a")
    run.full = {2}
    run.dies(2)
    run.turns(2.5)
    run.full = set()
    run.turns(2.0)
    run.opens(2)
    assert run.turns(0.1).opened in ([], [[0, 1, 2]]) and run.orders.opened == [[0, 1, 2]]
    run.comes_up()
    assert run.turn().entered == [2]
    run.trains(8)
    run.turn()
    run.full = {2}
    run.dies(2)
    run.turns(2.0)
    assert failed(run.orders) == [StartFailed(2, NO_ROOM)] * 2


def test_one_that_cannot_be_started_does_not_keep_others_from_joining() -> None:
    run = training("a a b b")
    run.full = {3}
    run.dies(1, 3)
    run.turns(1.5)
    run.opens(1)
    run.turns(0.1)
    assert run.orders.opened == [[0, 1, 2]]


def test_a_run_that_cannot_begin_ends_soon_with_its_sentence() -> None:
    run = planned("a a")
    run.full = {1}
    run.turn()
    run.opens(0)
    run.turns(2 * START_BACKOFF)
    assert run.finish == Finish(MISUSED) and run.orders.started == [0] + [1] * RESTARTS
    assert failed(run.orders) == [StartFailed(1, NO_ROOM)] and run.orders.entered == []


def test_a_run_of_one_that_cannot_begin_at_once_begins_later() -> None:
    run = planned("a")
    run.full = {0}
    run.turn()
    run.turn()
    run.full = set()
    run.turns(1.0)
    run.opens(0)
    assert run.turns(0.1).entered == [1] and run.finish is None


def test_a_signal_ends_a_run_whose_workers_cannot_be_started() -> None:
    run = planned("a")
    run.full = {0}
    run.turn()
    run.turn()
    run.turn(signal=StopSignal.TERMINATE)
    assert run.finish is not None and run.finish.status == FAILED


@pytest.mark.parametrize("policy", ["replace", "restart"])
@pytest.mark.parametrize("lasts", [0.0, 3.0, 40.0])
def test_a_host_without_room_costs_the_others_nothing(policy: str, lasts: float) -> None:
    for at in range(30, 120, 15):
        faults = (Fault(Kind.FULL, at, lasts=lasts), Fault(Kind.KILL, at, target=1, after=0.05))
        outcome = simulate(Case(policy=policy, steps=8, faults=faults))
        check(outcome)
        assert outcome.status == DONE
