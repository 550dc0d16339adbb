"""What follows a failure, by policy."""

from __future__ import annotations

import pytest

from meshmend.base.status import FAILED
from meshmend.run.supervisor import POLICIES
from meshmend.run.supervisor.actions import (
    EnterWorld,
    FindCheckpoint,
    Finish,
    KillWorld,
    NoteAttempt,
    NoteDeath,
    Remove,
    Start,
)
from meshmend.run.supervisor.messages import Begin, Joined, Restarted, Restarting, RestartsExhausted
from meshmend.run.supervisor.observations import Cause
from meshmend.run.supervisor.state import RESTARTS, Phase
from tests.run.supervisor.story import Run, training


def test_shrink_starts_nobody() -> None:
    run = training("a a a", "shrink")
    run.dies(1)
    assert run.turn().kinds[:1] == [NoteDeath]
    assert run.turns(5) == [] and run.halting is None


def test_spare_starts_nobody_and_keeps_its_world() -> None:
    run = training("a a a", "spare", spares=1)
    run.dies(1).turn()
    run.see(2, active=True)
    assert run.turns(5) == [] and run.halting is None


def test_replace_joins_a_new_worker_in_a_world_of_its_own() -> None:
    run = training("a a a")
    run.dies(1).turn()
    assert run.turn(after=1.5).started == [1]
    run.opens(1).turn()
    orders = run.comes_up().turn()
    assert orders.of(EnterWorld) == [EnterWorld(2, fresh=False, reason=Joined((1,)), ranks=(0, 1, 2))]


def test_restart_ends_the_world_with_the_first_death_and_waits_for_the_new_worker() -> None:
    run = training("a a a", "restart")
    orders = run.dies(1).turn()
    assert orders.of(KillWorld) == [KillWorld(1)] and orders.started == [1]
    assert run.turns(3).opened == []  # nobody trains before the new worker is ready
    orders = run.opens(1).turn()
    assert orders.of(EnterWorld) == [EnterWorld(2, fresh=False, reason=Restarted(), ranks=(0, 1, 2))]


def restarts(run: Run, checkpoint: str) -> None:
    """One of two workers dies, and everything restarts from this checkpoint, if it does."""
    run.dies(0)
    orders = run.turn()
    assert orders.killed == [(1, Cause.RESTARTED)] and orders.of(FindCheckpoint) == [FindCheckpoint()]
    run.dies(1, cause=Cause.RESTARTED)
    run.turn(checkpoint=checkpoint)


def test_checkpoint_restarts_everything_from_the_last_one() -> None:
    run = training("a a", "checkpoint")
    restarts(run, "step-4")
    assert run.state.phase is Phase.RUNNING and run.state.fresh
    assert run.orders.of(Remove) == [Remove(("a",))]
    assert run.orders.said[-1] == Restarting("step-4")
    assert run.orders.of(NoteAttempt) == [NoteAttempt(1, restarted=True)]
    assert run.orders.of(Start) == [Start(0, "a", "step-4"), Start(1, "a", "step-4")]
    orders = run.opens().turn()
    assert orders.of(EnterWorld) == [EnterWorld(2, fresh=True, reason=Begin(), ranks=(0, 1))]


def test_nothing_restarts_before_all_are_dead_and_the_checkpoint_is_found() -> None:
    run = training("a a", "checkpoint")
    run.dies(0).turn()
    assert run.turn(checkpoint="step-4").started == []  # rank 1 is not dead yet
    run.dies(1, cause=Cause.RESTARTED)
    assert run.turn().started == [0, 1]
    run = training("a a", "checkpoint")
    run.dies(0).turn()
    run.dies(1, cause=Cause.RESTARTED)
    assert run.turn().started == []  # it is still being looked for
    assert run.turn(checkpoint="").started == [0, 1]


def test_restarts_that_get_no_further_are_not_repeated_for_ever() -> None:
    run = training("a a", "checkpoint")
    for _ in range(RESTARTS):
        restarts(run, "step-4")
        assert run.finish is None
        run.opens().turn()
        run.comes_up().trains(5).turn()
    restarts(run, "step-4")
    assert run.orders.said[-1] == RestartsExhausted(RESTARTS, "step-4")
    assert run.finish == Finish(FAILED)


def test_restarts_that_get_further_are() -> None:
    run = training("a a", "checkpoint")
    for step in range(4 * RESTARTS):
        restarts(run, f"step-{step}")
        run.opens().turn()
        run.comes_up().trains(step + 2).turn()
    assert run.finish is None and run.state.attempt == 4 * RESTARTS


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_survives_one_death_without_losing_the_run(policy: str) -> None:
    run = training("a a a", policy, spares=1)
    run.dies(0)
    for _ in range(40):
        run.turn(after=0.1)
        for rank, seen in run.seen.items():
            if seen.status is None and (rank, Cause.RESTARTED) in run.orders.killed and not run.orders.started:
                run.dies(rank, cause=Cause.RESTARTED)
        if run.orders.of(FindCheckpoint) and not run.orders.started:
            run.turn(checkpoint="step-4")
    assert run.finish is None and run.halting is None


def test_every_policy_is_documented() -> None:
    assert all(type(policy).__doc__ for policy in POLICIES.values())
    assert [name for name, policy in POLICIES.items() if policy.needs_spares] == ["spare"]
