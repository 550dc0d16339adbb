"""Stopping a run: who writes the checkpoint, how long that may take, and what is said."""

from __future__ import annotations

import pytest

from meshmend.base.clocks import HALT, TOGETHER
from meshmend.base.status import FAILED, HALTED
from meshmend.run.supervisor.actions import FindCheckpoint, Finish, Halt, Release
from meshmend.run.supervisor.messages import (
    BadStart,
    Halting,
    HaltReason,
    MemoryRemoved,
    Signalled,
    StateLost,
    Stopped,
    TooFew,
)
from meshmend.run.supervisor.observations import STOPPED, Cause, CourierState, RankSeen, StopSignal
from meshmend.run.supervisor.state import Phase
from tests.run.supervisor.story import begun, planned, training

ASKED = Signalled("SIGTERM")


def test_the_first_active_rank_writes_the_checkpoint_and_all_stop() -> None:
    run = training("a a a", "shrink")
    run.dies(0).turn()
    orders = run.turn(signal=StopSignal.TERMINATE)
    assert orders.said == [Halting(ASKED, checkpoint=True)] and orders.of(Halt) == [Halt(1)]
    run.dies(1, 2, status=HALTED)
    assert run.turn() == [Finish(HALTED, ASKED)]


def test_one_whose_courier_is_lost_does_not_write_the_checkpoint_where_another_can() -> None:
    """The others may have gone on without it: with sharded updates it can save nothing by itself."""
    run = training("a a")
    run.see(0, courier=CourierState.LOST)
    assert run.turn(signal=StopSignal.TERMINATE).of(Halt) == [Halt(1)]
    run = training("a a")
    run.see(courier=CourierState.LOST)
    assert run.turn(signal=StopSignal.TERMINATE).of(Halt) == [Halt(0)]


def test_one_that_writes_the_checkpoint_is_given_the_time_for_it() -> None:
    run = training("a a")
    assert run.turn(signal=StopSignal.TERMINATE).killed == []
    run.see(0, saving=True)
    assert run.turns(0).killed == [] and run.turn(after=HALT - 1).killed == []
    assert run.turn(after=2).killed == [(1, Cause.HALTED)]
    assert run.turn(after=10 * HALT).killed == []
    run.see(0, saving=False)
    assert run.turn().killed == [(0, Cause.HALTED)]


def test_one_that_is_stopped_while_it_writes_the_checkpoint_is_not_waited_for() -> None:
    run = training("a a")
    run.turn(signal=StopSignal.TERMINATE)
    run.see(0, saving=True, still=STOPPED)
    assert run.turn(after=HALT - 1).killed == []
    assert (0, Cause.HALTED) in run.turn(after=2).killed


def test_a_second_signal_does_not_wait() -> None:
    run = training("a a")
    run.turn(signal=StopSignal.INTERRUPT)
    run.see(saving=True)
    assert run.turn(signal=StopSignal.INTERRUPT).killed == [(0, Cause.HALTED), (1, Cause.HALTED)]


def test_sigterm_that_reaches_the_launcher_on_two_ways_is_one() -> None:
    """Slurm signals every process of a job, and the batch script passes its own signal on."""
    run = training("a a")
    run.turn(signal=StopSignal.TERMINATE)
    assert run.turn(signal=StopSignal.TERMINATE).killed == [] == run.turn(signal=StopSignal.TERMINATE).killed
    assert run.turn(after=2 * TOGETHER, signal=StopSignal.TERMINATE).killed == [(0, Cause.HALTED), (1, Cause.HALTED)]


def test_a_replaced_agent_learns_that_the_run_is_halted() -> None:
    run = training("a b b")
    run.turn(signal=StopSignal.TERMINATE)
    orders = run.replaces_agent("b").turn()
    assert orders.of(Halt) == [Halt(0)]


def test_workers_that_have_not_opened_their_job_have_nothing_to_save() -> None:
    run = planned("a a")
    run.turn()
    orders = run.turn(signal=StopSignal.INTERRUPT)
    assert orders.said == [Halting(Signalled("SIGINT"), checkpoint=False)] and orders.of(Halt) == [Halt(-1)]
    assert orders.killed == [(0, Cause.NOT_OPENED), (1, Cause.NOT_OPENED)]
    orders = run.dies(0, 1, cause=Cause.NOT_OPENED).turn()
    assert orders == [Finish(FAILED, Signalled("SIGINT"))]


def test_too_few_are_left() -> None:
    run = training("a a a", "shrink", least=2)
    run.dies(1).turn()
    assert run.halting is None
    run.dies(2).turn()
    assert run.halting == TooFew(1, 2)
    orders = run.turn()
    assert orders.said == [Halting(TooFew(1, 2), checkpoint=True)] and orders.of(Halt) == [Halt(0)]


def test_shared_memory_that_is_removed_halts_the_run_while_its_workers_still_have_theirs() -> None:
    run = training("a a b")
    run.see(2, memory_removed=True)
    orders = run.turn()
    assert run.halting == MemoryRemoved(("b",))
    assert orders.said == [Halting(MemoryRemoved(("b",)), checkpoint=True)] and orders.of(Halt) == [Halt(0)]
    assert run.see(0, 1, memory_removed=True).turn().said == []


@pytest.mark.parametrize("stepped", [False, True])
def test_newcomers_without_the_state_do_not_begin_again_when_a_launcher_attaches(stepped: bool) -> None:
    """The workers that had it are gone with the shared memory in which the launcher looks for them."""
    run = planned("a a", attached=True)
    run.state.stepped = stepped
    run.turn()
    run.seen = {0: RankSeen(0, process=7), 1: RankSeen(1, process=8)}
    run.turn()
    orders = run.opens().turn()
    assert (run.halting == StateLost()) == stepped and (orders.opened == []) == stepped
    assert bool(run.orders.killed) == stepped


def test_a_worker_that_will_be_started_is_not_missing() -> None:
    run = training("a a a", least=3)
    run.dies(2).turn()
    assert run.halting is None


def test_that_nobody_is_left_is_said_though_nobody_is_left_to_halt() -> None:
    """Rank 1 was to be started again; the only one that had the state dies first."""
    run = training("a a")
    run.dies(1).turn()
    orders = run.dies(0).turn()
    assert Halting(StateLost(), checkpoint=False) in orders.said
    assert run.finish == Finish(FAILED, StateLost())


def test_spares_do_not_begin_again_when_all_that_had_the_state_are_dead() -> None:
    run = training("a a a", "spare", spares=1)
    run.dies(0, 1)
    assert run.turn().killed == [(2, Cause.STATELESS)]
    orders = run.dies(2, cause=Cause.STATELESS).turn()
    assert orders.said == [Halting(StateLost(), checkpoint=False)] and run.finish == Finish(FAILED, StateLost())


def test_one_that_is_exiting_is_not_dead_yet() -> None:
    """What follows may be a restart from the checkpoint, so nothing is given up before; but nothing is asked of it."""
    run = training("a a", "checkpoint", least=2)
    run.see(exiting=True, still=STOPPED)
    assert run.turns(1) == [] and run.halting is None
    assert run.dies(0, 1).turn().of(FindCheckpoint) == [FindCheckpoint()]


def test_one_that_is_exiting_does_not_write_the_checkpoint() -> None:
    run = training("a a")
    run.see(0, exiting=True)
    assert run.turn(signal=StopSignal.TERMINATE).of(Halt) == [Halt(1)]


def test_spares_are_released_when_the_last_step_is_done_and_not_when_somebody_ends_early() -> None:
    run = training("a a a", "shrink", spares=1)
    run.dies(0, status=0)  # it said goodbye in the middle
    assert run.turn().of(Release) == []
    run.see(1, over=True).dies(1, status=1)  # the script has failed after its last step
    assert run.turn().of(Release) == [Release(2, "a")]


@pytest.mark.parametrize("policy", ["replace", "spare", "shrink", "restart"])
def test_a_run_that_is_halted_starts_nobody(policy: str) -> None:
    run = training("a a a", policy, spares=1)
    run.turn(signal=StopSignal.TERMINATE)
    run.dies(1)
    for _ in range(20):
        run.turn(after=0.5)
    run.dies(0, 2, status=HALTED)
    run.turn()
    assert run.orders.started == [] and run.finish == Finish(HALTED, ASKED)


def test_a_signal_while_everything_restarts_ends_the_run() -> None:
    run = training("a a", "checkpoint")
    run.dies(0).turn()
    assert run.state.phase is Phase.RESTARTING
    run.turn(signal=StopSignal.TERMINATE)
    run.dies(1, cause=Cause.RESTARTED)
    run.turn(checkpoint="step-3")
    assert run.finish == Finish(FAILED, ASKED) and run.orders.started == []


def test_a_signal_before_the_first_world() -> None:
    run = begun("a a")
    orders = run.turn(signal=StopSignal.INTERRUPT)
    assert orders.of(Halt) == [Halt(-1)] and orders.killed == []  # they have opened their jobs, and exit by themselves


def test_a_launcher_that_attaches_to_workers_that_stop_by_themselves_says_how_to_resume() -> None:
    """The first of them, which writes the checkpoint, is still at it; a spare waits."""
    run = planned("a a a", "spare", spares=1, attached=True)
    run.seen = {rank: RankSeen(rank, process=10 + rank, ready=True, active=rank < 2, step=7) for rank in range(3)}
    run.see(0, halts=True, saving=True).see(1, halts=True, status=HALTED)
    run.turn()
    orders = run.turn()
    assert orders.said == [Halting(Stopped(), checkpoint=True)] and orders.started == []
    run.dies(0, 2, status=HALTED).turn()
    assert run.finish == Finish(HALTED, Stopped())


def test_where_only_some_stop_by_themselves_the_others_continue() -> None:
    run = planned("a a", attached=True)
    run.seen = {rank: RankSeen(rank, process=10 + rank, ready=True, active=True, step=7) for rank in range(2)}
    run.see(0, halts=True, status=HALTED).turn()
    assert run.turn().opened == [[1]] and run.halting is None


@pytest.mark.parametrize(("reason", "status"), [(ASKED, HALTED), (BadStart((1,), 2), FAILED)])
def test_a_launcher_that_attaches_ends_a_halted_run_as_the_one_before_it_would_have(
    reason: HaltReason, status: int
) -> None:
    run = planned("a a", attached=True)
    run.state.halt_reason, run.state.writer = reason, 0
    run.seen = {0: RankSeen(0, process=10, status=HALTED, job=2, ready=True, active=True, halts=True)}
    run.turn()
    run.turn()
    assert run.finish == Finish(status, reason) and run.orders.started == []
