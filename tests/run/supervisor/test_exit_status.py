"""The exit status of a run, from how its workers ended."""

from __future__ import annotations

import pytest

from meshmend.base.status import DONE, FAILED, HALTED, MISUSED
from meshmend.run.supervisor.actions import Finish
from meshmend.run.supervisor.halting import exit_status
from meshmend.run.supervisor.observations import RankSeen, StopSignal, WorkerError
from tests.run.supervisor.story import planned, training


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ([(0, True, True), (0, True, True)], DONE),
        ([(0, True, True), (-9, True, True)], DONE),  # a death after the last step
        ([(0, True, True), (3, True, True)], FAILED),  # the script fails after it
        ([(0, True, False), (0, True, False)], FAILED),  # they left in the middle
        ([(0, False, False), (0, False, False)], DONE),  # a script that has no job
        ([(-9, True, False), (0, True, False)], FAILED),
    ],
)
def test_a_run_is_done_when_its_last_step_is(ends: list[tuple[int, bool, bool]], status: int) -> None:
    seen = [
        RankSeen(rank, status=how, ready=ready, over=over, left=over, active=over)
        for rank, (how, ready, over) in enumerate(ends)
    ]
    assert exit_status(seen, -1, halted=False) == status


def test_a_script_that_exits_before_it_has_finished_its_last_step_has_not_done_it() -> None:
    assert exit_status([RankSeen(0, status=0, ready=True, over=True, active=True)], -1, halted=False) == FAILED


def error(*, mistake: bool) -> WorkerError:
    return WorkerError(5, "ValueError: no", "…", mistake)


@pytest.mark.parametrize(
    ("ends", "writer", "status"),
    [
        ([RankSeen(0, status=HALTED), RankSeen(1, status=HALTED)], 0, HALTED),
        ([RankSeen(0, status=-9), RankSeen(1, status=HALTED)], 0, FAILED),  # the writer died: there is no checkpoint
        ([RankSeen(0, status=HALTED)], -1, FAILED),  # nobody could write one
        ([RankSeen(0, status=0, over=True)], 0, FAILED),  # it did not write one
        ([RankSeen(0, status=2, error=error(mistake=True)), RankSeen(1, status=HALTED)], 1, HALTED),
    ],
)
def test_a_halted_run_has_a_checkpoint_or_has_failed(ends: list[RankSeen], writer: int, status: int) -> None:
    assert exit_status(ends, writer, halted=True) == status


def test_a_side_that_was_killed_to_start_again_has_its_last_checkpoint() -> None:
    seen = [RankSeen(0, status=-9, ready=True)]
    assert exit_status(seen, -1, halted=True, kept=True) == HALTED
    assert exit_status(seen, -1, halted=True) == FAILED


@pytest.mark.parametrize(
    ("mistakes", "status"), [([True, True], MISUSED), ([True, False], FAILED), ([False], FAILED), ([], FAILED)]
)
def test_a_mistake_of_the_user_has_a_status_of_its_own(mistakes: list[bool], status: int) -> None:
    seen = [RankSeen(n, status=2, ready=True, error=error(mistake=mistake)) for n, mistake in enumerate(mistakes)]
    assert exit_status([*seen, RankSeen(9, status=-9, ready=True)], -1, halted=False) == status


def test_the_run_is_over_when_the_last_worker_is() -> None:
    run = training("a a")
    run.see(over=True, left=True).dies(0, status=0).turn()
    assert run.finish is None
    run.dies(1, status=0).turn()
    assert run.finish == Finish(DONE)
    assert run.orders.said == [] and run.orders.started == []


def test_a_script_without_a_job_is_done_when_it_exits() -> None:
    run = planned("a a")
    run.turn()
    run.dies(0, 1, status=0).turn()
    assert run.finish == Finish(DONE)


@pytest.mark.parametrize(("resume", "status"), [("step-5", HALTED), ("", FAILED)])
def test_a_run_that_is_stopped_before_it_has_continued_still_has_its_checkpoint(resume: str, status: int) -> None:
    """The next `--resume` begins where this one did; without a checkpoint, there is nothing to resume."""
    run = planned("a a")
    run.state.resume = resume
    run.turn()
    run.turn(signal=StopSignal.TERMINATE)
    run.dies(0, 1).turn()
    assert run.finish is not None and run.finish.status == status
