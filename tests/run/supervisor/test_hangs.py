"""Which of the workers that make no progress are killed, and when nobody is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshmend.base.clocks import STANDSTILL
from meshmend.run.supervisor.messages import AllStill, FirstBusy, Halting, Replacing, Standstill, WorkerEnded
from meshmend.run.supervisor.observations import HANGS, MOVES, STOPPED, Cause, RankSeen, Stillness
from meshmend.run.supervisor.patience import FIRST_ALONE, HangJudge
from meshmend.run.supervisor.ranks import within
from tests.run.supervisor.story import KILLED, Orders, Run, planned, training

Level = int | Stillness


def at(level: Level) -> Stillness:
    return level if isinstance(level, Stillness) else Stillness(level)


def judged(judge: HangJudge, *still: Level, step: int = 5, now: float = 0.0) -> list[int]:
    """Whom it has killed when workers are still like this."""
    return judge.judge(dict(enumerate(map(at, still))), step, now)


def looks(run: Run, *still: Level, step: int = 5) -> Orders:
    """One turn in which workers are still like this."""
    for rank, level in enumerate(still):
        run.see(rank, still=at(level), step=step)
    return run.turn()


def test_one_that_hangs_is_killed_and_a_pause_of_all_is_waited_for() -> None:
    run = training("a a a a")
    assert looks(run, 0, 0, 1, 0) == []
    assert looks(run, 0, 0, HANGS, 0).killed == [(2, Cause.HANG)]
    run.dies(2, cause=Cause.HANG).turn()
    orders = looks(run, HANGS, 1, 0, HANGS, step=6)  # rank 2 is dead
    assert orders.killed == [] and orders.said == [AllStill()]
    assert looks(run, HANGS, 0, 0, HANGS + 1, step=6).killed == [(0, Cause.HANG), (3, Cause.HANG)]


def test_a_pause_of_all_is_not_waited_for_for_ever() -> None:
    run = training("a a a")
    assert looks(run, HANGS, HANGS, HANGS).said == [AllStill()]
    assert looks(run, HANGS + 9, HANGS, HANGS).said == []  # it was said
    run.turn(after=STANDSTILL - 1)
    assert run.halting is None
    run.turn(after=2)
    assert run.halting == Standstill(STANDSTILL)
    assert run.turn().said == [Halting(Standstill(STANDSTILL), checkpoint=True)]
    assert run.orders.killed == []


def test_a_pause_that_ends_is_forgotten() -> None:
    run = training("a a")
    looks(run, HANGS, 1)
    run.turn(after=STANDSTILL - 1)
    looks(run, 0, 1)
    assert looks(run, HANGS, 1).said == [AllStill()]
    run.turn(after=STANDSTILL - 1)
    assert run.halting is None


def test_the_next_one_in_the_same_step_has_twice_the_time() -> None:
    judge = HangJudge()
    assert judged(judge, 0, 0, HANGS) == [2]
    assert judged(judge, 0, HANGS) == []
    assert judged(judge, 0, HANGS + 1) == [1]
    assert judged(judge, HANGS + 9) == []  # the last one has the state
    assert judged(judge, 0, STOPPED, STOPPED) == [1, 2]  # that is not the lane's fault
    assert judged(judge, 0, HANGS, step=6) == [1]


def test_one_that_is_being_killed_counts_as_one_that_hung_only_once() -> None:
    run = training("a a a")
    assert looks(run, 0, 0, STOPPED).killed == [(2, Cause.STOPPED)]
    assert run.turns(1).killed == []
    assert looks(run, 0, HANGS).killed == []
    assert looks(run, 0, HANGS + 1).killed == [(1, Cause.HANG)]


def test_nothing_is_asked_of_a_worker_that_has_ended_its_job() -> None:
    run = training("a a a")
    run.see(1, over=True)
    assert looks(run, 0, STOPPED, 0).killed == []


def test_the_others_wait_for_the_first_one_that_is_busy_between_two_steps() -> None:
    run = training("a a a")
    run.see(outside=True)
    assert looks(run, HANGS, 0, 0).said == [FirstBusy(0)]
    orders = looks(run, HANGS + FIRST_ALONE - 1, 0, 0)
    assert orders.killed == [] and orders.said == []
    assert looks(run, HANGS + FIRST_ALONE, 0, 0).killed == [(0, Cause.HANG)]
    ended = WorkerEnded(0, KILLED, Cause.HANG, outside=True)
    assert run.dies(0, cause=Cause.HANG).turn().said == [ended, Replacing(0)]


@pytest.mark.parametrize(
    ("levels", "outside", "killed"),
    [
        ((0, HANGS, 0), True, 1),  # only the first one speaks for all
        ((HANGS, 0, 0), False, 0),  # in a lane
        ((STOPPED, 0, 0), True, 0),  # it never goes on by itself
        ((HANGS, 1, 0), True, 0),  # another one is slow too
    ],
)
def test_nobody_else_is_waited_for(levels: tuple[Level, ...], outside: bool, killed: int) -> None:
    run = training("a a a")
    run.see(outside=outside)
    cause = Cause.STOPPED if levels[killed] == STOPPED else Cause.HANG
    assert looks(run, *levels).killed == [(killed, cause)]


def test_one_that_is_stopped_while_it_loads_is_killed_and_not_waited_for() -> None:
    run = planned("a a a")
    run.turn()
    run.opens(0, 2).see(1, still=STOPPED)
    assert run.turn().killed == [(1, Cause.STOPPED)]
    assert run.dies(1, cause=Cause.STOPPED).turns(2).started == [1]
    assert run.opens(1).turn().opened == [[0, 1, 2]]


def test_where_all_are_stopped_while_they_load_nobody_is_killed() -> None:
    run = planned("a a")
    run.turn()
    run.see(still=STOPPED)
    orders = run.turns(3)
    assert orders.killed == [] and orders.said == [AllStill()]


def test_a_newcomer_that_is_stopped_while_it_loads_is_replaced() -> None:
    run = training("a a a")
    run.dies(2).turn()
    assert run.turn(after=1.5).started == [2]
    assert run.see(2, still=STOPPED).turn().killed == [(2, Cause.STOPPED)]


def test_one_that_is_stopped_between_two_jobs_is_killed_and_not_waited_for() -> None:
    seen = RankSeen(1, process=7, job=1, ready=True, over=True, left=True, still=STOPPED)
    assert within(seen, 2, seen).still == STOPPED and within(replace(seen, left=False), 2, seen).still == MOVES
