"""A worker is judged by its own pace, and by its own time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshmend.base.clocks import AGENT_POLL, AGENT_REST, HANG_FIRST, HANG_FLOOR, HANG_OUTSIDE, HANG_PATIENCE
from meshmend.base.processes import Doing
from meshmend.run.agent.pulse import LOOKS, SEEN, LoadingPulse, Pulse
from meshmend.run.supervisor.observations import HANGS, MOVES, PAUSES, STOPPED

TICK = 0.01


def paced(pause: float, beats: int, *, inside: bool = True) -> tuple[Pulse, float]:
    pulse, now = Pulse(), 0.0
    for beat in range(beats):
        assert not pulse.still(beat, inside, True, now, lambda: (Doing.RUNNING, 0.0))
        now += pause
    return pulse, now - pause


def until_hang(
    pulse: Pulse,
    now: float,
    doing: Callable[[float], tuple[Doing, float]],
    *,
    inside: bool = True,
    most: float = 1000.0,
) -> float:
    """Seconds that it stands still before it is called a hang."""
    begin = now
    while now - begin < most:
        now += TICK
        if pulse.still(pulse.progress, inside, True, now, lambda now=now: doing(now)).hangs:  # type: ignore[misc]
            return now - begin
    return most


@pytest.mark.parametrize(
    ("what", "more"), [(Doing.STOPPED, HANG_FLOOR["stopped"]), (Doing.WAITING, HANG_PATIENCE * 10)]
)
def test_one_that_stands_still_is_found_by_its_own_pace(what: str, more: float) -> None:
    pulse, now = paced(10.0, 20)
    assert until_hang(pulse, now, lambda _: (what, 0.0)) == pytest.approx(HANG_PATIENCE * 10 + more, abs=3 * TICK)


def test_one_that_is_stopped_does_not_go_on_by_itself() -> None:
    pulse, now = paced(0.001, 50)
    levels = [
        pulse.still(pulse.progress, True, True, now + n * TICK, lambda: (Doing.STOPPED, 0.0)) for n in range(1, 50)
    ]
    assert set(levels) == {PAUSES, STOPPED}


def compiled(first: float, pause: float, beats: int) -> tuple[Pulse, float]:
    """A worker whose first lane took long."""
    pulse, now = Pulse(), 0.0
    for beat in range(beats):
        assert not pulse.still(beat, True, True, now, lambda: (Doing.RUNNING, 0.0))
        now += pause if beat else first
    return pulse, now - pause


@pytest.mark.parametrize(
    ("what", "limit"),
    [(Doing.STOPPED, HANG_PATIENCE * 0.1 + HANG_FLOOR["stopped"]), (Doing.WAITING, 2 * HANG_PATIENCE * 10)],
)
def test_a_slow_first_lane_counts_only_for_one_that_may_continue(what: str, limit: float) -> None:
    pulse, now = compiled(10.0, 0.1, 20)
    assert until_hang(pulse, now, lambda _: (what, 0.0)) == pytest.approx(limit, abs=5 * TICK)


def test_one_that_was_stopped_for_moments_is_not_blamed_for_all_of_them_together() -> None:
    """Each is shorter than the floor, and it runs in between."""
    pulse, now = compiled(10.0, 0.1, 20)
    assert (
        until_hang(pulse, now, lambda now: (Doing.STOPPED if now % 0.1 < 0.06 else Doing.RUNNING, 0.0), most=10) == 10
    )


@pytest.mark.parametrize("what", [Doing.STOPPED, Doing.WAITING])
def test_quick_steps_have_a_floor(what: str) -> None:
    pulse, now = paced(0.001, 50)
    assert until_hang(pulse, now, lambda _: (what, 0.0)) == pytest.approx(HANG_FLOOR[what], abs=5 * TICK)


def test_a_loop_uses_the_processor() -> None:
    pulse, now = paced(0.001, 50)
    assert until_hang(pulse, now, lambda now: (Doing.RUNNING, now)) == pytest.approx(
        HANG_FLOOR["running"], abs=5 * TICK
    )


def test_quick_signs_count_also_between_looks() -> None:
    pulse = Pulse()
    assert not pulse.still(0, True, True, 0.0, lambda: (Doing.RUNNING, 0.0))
    assert not pulse.still(SEEN, True, True, 0.02, lambda: (Doing.RUNNING, 0.0))
    assert until_hang(pulse, 0.02, lambda _: (Doing.STOPPED, 0.0)) == pytest.approx(HANG_FLOOR["stopped"], abs=5 * TICK)


def test_one_that_is_not_let_run_is_not_blamed() -> None:
    pulse, now = paced(0.001, 50)
    assert until_hang(pulse, now, lambda now: (Doing.RUNNING, now / 100), most=40) == 40
    pulse, now = paced(0.001, 50)
    assert until_hang(pulse, now, lambda _: (Doing.TRACED, 0.0)) == 1000


@pytest.mark.parametrize("what", [Doing.RUNNING, Doing.WAITING])
def test_the_first_compile_is_no_hang(what: str) -> None:
    pulse = Pulse()
    assert not pulse.still(0, True, True, 0.0, lambda: (what, 0.0))
    assert until_hang(pulse, 0.0, lambda now: (what, now)) == 1000
    pulse, now = paced(0.01, SEEN)
    assert until_hang(pulse, now, lambda now: (what, now)) == 1000


def test_one_that_is_stopped_in_its_first_step_is_found() -> None:
    pulse = Pulse()
    assert not pulse.still(0, True, True, 0.0, lambda: (Doing.STOPPED, 0.0))
    assert until_hang(pulse, 0.0, lambda _: (Doing.STOPPED, 0.0)) == pytest.approx(
        HANG_FIRST + HANG_FLOOR["stopped"], abs=5 * TICK
    )


def test_an_evaluation_is_no_hang() -> None:
    pulse, now = paced(0.01, 50)
    assert not pulse.still(pulse.progress + 1, False, True, now + 0.01, lambda: (Doing.RUNNING, 0.0))
    found = until_hang(pulse, now + 0.01, lambda now: (Doing.RUNNING, now), inside=False)
    assert found == pytest.approx(HANG_OUTSIDE, abs=5 * TICK)


def test_a_watch_that_slept_blames_nobody() -> None:
    pulse, now = paced(0.01, 50)
    for nap in (3600.0, 7200.0, 10800.0):
        assert not pulse.still(pulse.progress, True, True, now + nap, lambda: (Doing.WAITING, 0.0)).hangs


def test_one_more_for_each_time_that_it_takes_twice_as_long() -> None:
    pulse, now = paced(0.001, 50)
    levels = [
        pulse.still(pulse.progress, True, True, now + n * TICK, lambda: (Doing.WAITING, 0.0)) for n in range(1, 4500)
    ]
    assert levels == sorted(levels) and {one.level for one in levels} == {1, HANGS, HANGS + 1, HANGS + 2, HANGS + 3}
    assert [one.level for one in levels].index(HANGS + 1) * TICK == pytest.approx(
        2 * HANG_FLOOR["waiting"], abs=5 * TICK
    )


def test_waiting_for_others_is_not_its_pace() -> None:
    pulse, now = paced(0.01, 50)
    for second in range(100):
        assert not pulse.still(pulse.progress, True, False, now + second, lambda: (Doing.WAITING, 0.0))
    assert not pulse.still(pulse.progress, True, True, now + 100, lambda: (Doing.WAITING, 0.0))
    assert not pulse.still(pulse.progress + 1, True, True, now + 100.01, lambda: (Doing.WAITING, 0.0))
    assert until_hang(pulse, now + 100.01, lambda _: (Doing.STOPPED, 0.0)) == pytest.approx(
        HANG_FLOOR["stopped"], abs=5 * TICK
    )


def test_nobody_waits_for_one_that_owes_nothing() -> None:
    pulse, now = paced(0.01, 50)
    assert not pulse.still(pulse.progress, True, False, now + 1000, lambda: (Doing.STOPPED, 0.0))


def test_nobody_looks_more_often_than_its_pace_needs() -> None:
    assert paced(10.0, SEEN)[0].rest == 0.0, "its pace is not known yet"
    pulse, now = paced(0.5, 20)
    assert pulse.rest == pytest.approx(0.5 / LOOKS)
    assert pulse.still(pulse.progress, True, True, now + 1.0, lambda: (Doing.STOPPED, 0.0))
    assert pulse.rest == 0.0, "it has paused for longer than ever"


def test_a_stopped_worker_is_found_in_time_by_one_who_looks_seldom() -> None:
    pulse, now = paced(0.5, 20)
    begin = now
    while not pulse.still(pulse.progress, True, True, now, lambda: (Doing.STOPPED, 0.0)).hangs:
        now += max(AGENT_POLL, min(AGENT_REST, pulse.rest))
    late = HANG_PATIENCE * 0.5 + HANG_FLOOR["stopped"]
    assert late <= now - begin <= late + 0.5 / LOOKS + 3 * AGENT_POLL


def test_one_that_is_stopped_while_it_loads_is_found() -> None:
    pulse = LoadingPulse()
    looks = [pulse.still(now / 50, lambda: True) for now in range(100, 300)]
    assert looks[0] == MOVES and looks[-1] == STOPPED and sum(map(bool, looks)) < 110
    assert pulse.still(6.5, lambda: False) == MOVES
    assert pulse.still(7.0, lambda: True) == MOVES  # stopped again, but not for long
    assert pulse.still(70.0, lambda: True) == MOVES  # nor does time count in which nobody looked


def test_a_pause_between_steps_is_not_judged_as_one_inside_a_lane() -> None:
    """It waits for a second outside of lanes, where a minute is allowed, and then begins one."""
    pulse, now = paced(0.015, 20, inside=False)
    for _ in range(100):
        now += TICK
        assert not pulse.still(pulse.progress, False, True, now, lambda: (Doing.WAITING, 0.0)).hangs
    assert pulse.own > HANG_FLOOR["running"]
    assert pulse.still(pulse.progress, True, True, now + TICK, lambda: (Doing.RUNNING, 0.0)) == MOVES
