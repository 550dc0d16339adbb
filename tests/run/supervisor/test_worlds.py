"""Worlds: those that never come up, those that are stuck, and those that are made ready beside the one at work."""

from __future__ import annotations

from itertools import pairwise

import pytest

from meshmend.base.clocks import EXIT_WAIT, REPAIR, SETTLE, WORLD_START
from meshmend.base.status import MISUSED
from meshmend.run.supervisor.actions import EnterWorld, Finish, KillWorld, Loss, NoteMpirunLost, OpenWorld, Release
from meshmend.run.supervisor.messages import (
    Attached,
    Begin,
    Joined,
    JoinFailed,
    MpirunLost,
    NoCourierEver,
    NoProgress,
    RepairStuck,
    StateLost,
)
from meshmend.run.supervisor.observations import Cause, CourierState
from meshmend.run.supervisor.patience import IN_VAIN, TRIES
from meshmend.run.supervisor.state import RESTARTS
from tests.run.supervisor.story import Run, begun, planned, training


def ends_at_once(run: Run, *, comes_up: bool, steps: bool = False) -> Run:
    """From now on, the mpirun of every world ends as soon as it is started."""

    def end(world: OpenWorld) -> None:
        run.ended.add(world.number)
        if comes_up:
            run.see(standby=world.number)
        if steps:
            run.see(step=run.seen[0].step + 1)

    run.on_open = end
    assert run.state.world is not None
    run.ended.add(run.state.world.number)
    return run


def test_the_first_world_is_formed_when_all_workers_are_ready() -> None:
    run = planned("a a a")
    assert run.turn().started == [0, 1, 2]
    assert run.opens(0, 2).turn().opened == []
    orders = run.opens(1).turn()
    assert orders.opened == [[0, 1, 2]]
    assert orders.of(EnterWorld) == [EnterWorld(1, fresh=True, reason=Begin(), ranks=(0, 1, 2))]


def test_worlds_that_do_not_come_up_are_tried_ever_more_seldom_and_not_for_ever() -> None:
    run = ends_at_once(training("a a"), comes_up=False)
    run.turns(300)
    opened = run.when(OpenWorld)
    assert len(opened) == TRIES and run.halting == NoCourierEver(TRIES)
    # The first world that does not come up is replaced at once; after that, whatever is wrong may take time to pass.
    pauses = [round(after - before, 1) for before, after in pairwise(opened[1:])]
    assert pauses == sorted(pauses) and pauses[0] >= 1 and pauses[-1] >= 8


def test_a_run_that_never_began_gives_up_soon() -> None:
    run = ends_at_once(begun("a a"), comes_up=False)
    run.turns(300)
    assert run.finish == Finish(MISUSED, no_world=True)
    assert len(run.when(OpenWorld)) == RESTARTS


def test_couriers_that_wait_for_the_last_to_come_up_are_not_stuck() -> None:
    run = training("a a")
    run.ended.add(1)
    assert run.turn().entered == [2]
    run.comes_up(0).see(0, stuck=True)
    assert run.turns(20).opened == []
    run.comes_up(1)
    assert run.turns(REPAIR - 1).opened == []
    assert run.turns(2).of(EnterWorld) == [EnterWorld(3, fresh=False, reason=RepairStuck(), ranks=(0, 1))]


def test_couriers_that_have_met_are_not_waited_for() -> None:
    run = training("a a")
    run.ended.add(1)
    run.turn()
    run.comes_up()
    assert run.turns(REPAIR + 1).opened == []
    assert run.see(stuck=True).turn().opened == [[0, 1]]


def test_a_newcomer_does_not_make_the_world_late() -> None:
    run = training("a a a")
    run.turn(after=2 * WORLD_START)
    run.dies(2).turn()
    assert run.turn(after=1.5).started == [2]
    orders = run.opens(2).turns(1)
    assert orders.of(NoteMpirunLost) == []  # for the newcomer, another world is being made ready
    assert orders.opened == [[0, 1, 2]] and orders.entered == []


def test_a_world_whose_couriers_never_come_up_is_given_up() -> None:
    run = training("a a")
    run.ended.add(1)
    run.turn()
    run.comes_up(0)
    assert run.turns(WORLD_START - 1, every=0.5).opened == []
    orders = run.turns(2, every=0.5)
    assert orders.of(NoteMpirunLost) == [NoteMpirunLost(Loss.LATE)] and orders.opened == [[0, 1]]


def test_a_world_that_the_agent_of_a_member_was_lost_before_it_entered_is_replaced() -> None:
    """Nobody has told the new agent to enter it, so that the couriers there wait for that for ever."""
    run = training("a b")
    run.ended.add(1)
    assert run.turn().entered == [2]
    run.comes_up().see(1, world=1, courier=CourierState.NONE)
    assert run.replaces_agent("b").turn().opened == []  # it has not looked yet
    orders = run.turn()
    assert orders.of(NoteMpirunLost) == [NoteMpirunLost(Loss.LATE)] and orders.entered == [3]
    assert run.comes_up().turns(5).opened == []


def test_a_world_for_newcomers_is_made_while_they_load_unless_the_last_one_was_in_vain() -> None:
    run = training("a a a a")
    run.dies(1, 3).turn()
    assert run.turn(after=1.5).started == [1, 3]
    run.dies(3).turn()
    assert run.orders.opened == []  # one more will join
    assert run.turn(after=1.5).started == [3]
    orders = run.turn()
    assert orders.opened == [[0, 1, 2, 3]] and orders.entered == []
    assert run.state.next is not None and run.state.next.reason == Joined((1, 3))
    run.comes_up().turn()
    assert run.orders.entered == []  # its couriers are there, and the workers are not yet
    run.dies(1)
    assert run.turn().of(KillWorld) == [KillWorld(2)]  # another one will be in that rank
    assert run.turn(after=1.5).started == [1]
    assert run.turns(1).opened == []  # the last world was opened in vain, so this one waits
    assert run.opens(1, 3).turn().opened == [[0, 1, 2, 3]]
    orders = run.comes_up().turn()
    assert orders.of(KillWorld) == [KillWorld(1)]
    assert orders.of(EnterWorld) == [EnterWorld(3, fresh=False, reason=Joined((1, 3)), ranks=(0, 1, 2, 3))]


@pytest.mark.parametrize("late", [False, True])
def test_worlds_for_newcomers_that_do_not_come_up_are_tried_ever_more_seldom(late: bool) -> None:
    """Twelve were opened per second, without a word; those that train must not be stopped for it either."""
    run = training("a a a")
    run.dies(1).turn()
    assert run.turn(after=1.5).started == [1]
    run.on_open = (lambda _: None) if late else (lambda world: run.ended.add(world.number))
    run.opens(1)
    run.turns(300 if late else 60)
    opened = run.when(OpenWorld)
    pauses = [round(after - before, 1) for before, after in pairwise(opened)]
    assert pauses == sorted(pauses) and (late or (pauses[0] >= 0.5 and len(opened) < 12))
    assert run.orders.entered == [] and run.halting is None
    assert [said for said in run.orders.said if isinstance(said, JoinFailed)] == [JoinFailed((1,))]
    run.on_open = lambda _: run.comes_up()
    orders = run.turns(2 * WORLD_START)
    assert [enter.reason for enter in orders.of(EnterWorld)] == [Joined((1,))]
    assert run.state.unready == 0


def test_a_world_that_came_up_is_replaced_at_once() -> None:
    run = ends_at_once(training("a a"), comes_up=True, steps=True)
    orders = run.turns(1)
    assert len(orders.opened) > IN_VAIN and run.halting is None
    assert {enter.reason for enter in orders.of(EnterWorld)} == {MpirunLost()}


def test_worlds_that_come_up_and_do_no_step_are_not_formed_for_ever() -> None:
    run = ends_at_once(training("a a", step=7), comes_up=True)
    run.turns(300)
    assert len(run.when(OpenWorld)) == IN_VAIN and run.halting == NoProgress(IN_VAIN, 7)


def test_a_worker_that_is_exiting_is_in_no_new_world() -> None:
    run = training("a a")
    run.ended.add(1)
    run.see(0, exiting=True)
    assert run.turns(EXIT_WAIT - 0.1).opened == []  # when its status is known, more may follow from that
    assert run.turns(0.2).opened == [[1]]  # giving back its memory may take for ever


def test_a_courier_that_died_alone_takes_its_worker_along() -> None:
    run = training("a a a")
    run.see(1, courier=CourierState.LOST)
    assert run.turns(SETTLE - 0.01).killed == []  # mpirun may have died, and ends its couriers one by one
    assert run.turns(0.1).killed == [(1, Cause.LOST_COURIER)]


def goes_on_alone(run: Run, rank: int) -> None:
    """This worker's group has shrunk to it alone, and made a sum that it has recorded."""
    run.see(rank, shrink=1, summed_world=1, summed_shrink=1, step=7).turn()


def test_a_courier_that_died_alone_takes_nobody_along_who_has_gone_on_without_the_others() -> None:
    """They were cut off from it: they would record its steps again."""
    run = training("a b", "shrink")
    goes_on_alone(run, 0)
    orders = run.see(0, courier=CourierState.LOST).see(1, stuck=True).turn()
    assert orders.of(EnterWorld) == [EnterWorld(2, fresh=False, reason=RepairStuck(), ranks=(0, 1))]
    assert run.orders.killed == []


@pytest.mark.parametrize("ready", [False, True], ids=["loading", "ready"])
def test_one_that_was_cut_off_does_not_go_on_when_those_that_had_gone_on_are_dead(ready: bool) -> None:
    run = training("a b", "replace")
    goes_on_alone(run, 0)
    run.see(1, stuck=True).turn()
    run.dies(0).turns(2)  # until it is replaced, and nothing is seen of it any more
    assert run.orders.started == [0] and run.orders.opened == [[0, 1]]
    if ready:
        run.opens(0).comes_up().turn()
    run.turns(REPAIR)
    assert run.orders.killed[0] == (1, Cause.LOST_COURIER) and run.halting == StateLost()
    assert run.orders.entered == []


def test_of_those_that_seem_to_have_been_left_out_nobody_is_killed_before_all_were_seen_again() -> None:
    """One host's agent was heard when the sum was made, and the other one's before."""
    run = training("a b", "shrink")
    goes_on_alone(run, 0)
    run.see(1, stuck=True).turn()
    run.dies(0).turn()
    while run.state.world is not None:
        run.turn()
    run.see(1, shrink=1, stuck=False)
    assert run.turn().opened == [[1]] and run.orders.killed == []


def test_couriers_that_died_with_their_mpirun_take_nobody_along() -> None:
    run = training("a a a")
    run.see(0, 1, courier=CourierState.LOST).turn()
    run.see(courier=CourierState.LOST)
    assert run.turns(SETTLE + 0.1).killed == []
    run.ended.add(1)
    assert run.turn().of(EnterWorld) == [EnterWorld(2, fresh=False, reason=MpirunLost(), ranks=(0, 1, 2))]


def test_nothing_is_formed_while_a_host_may_be_lost() -> None:
    run = training("a b", here="a")
    run.ended.add(1)
    run.sure = False
    assert run.turns(5) == []
    run.sure = True
    run.turn()
    assert run.turn(unreachable=frozenset()).opened == [[0, 1]]


def test_a_member_that_did_not_hear_that_all_leave_is_released() -> None:
    run = training("a a a")
    run.see(0, over=True).see(1, stuck=True)
    assert run.turn().of(Release) == [Release(1, "a")]


@pytest.mark.parametrize(("policy", "reason"), [("shrink", MpirunLost()), ("restart", MpirunLost())])
def test_a_lost_mpirun_is_replaced_under_the_living(policy: str, reason: MpirunLost) -> None:
    run = training("a a", policy)
    run.ended.add(1)
    assert run.turn().of(EnterWorld) == [EnterWorld(2, fresh=False, reason=reason, ranks=(0, 1))]


def test_an_attached_run_has_a_new_world_under_the_old_workers() -> None:
    old = training("a a")
    run = planned("a a", attached=True)
    run.seen = old.seen
    run.turn()
    orders = run.turn()
    assert orders.started == [] and orders.of(EnterWorld) == [
        EnterWorld(2, fresh=False, reason=Attached(), ranks=(0, 1))
    ]
