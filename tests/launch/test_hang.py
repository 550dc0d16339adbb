"""A worker is judged by its own pace."""

from __future__ import annotations

from meshmend.launch.hang import LEAST, PATIENCE, SEEN, Pulse


def paced(pause: float, beats: int) -> tuple[Pulse, float]:
    pulse, now = Pulse(), 0.0
    for beat in range(beats):
        assert not pulse.hangs(beat, True, now)
        now += pause
    return pulse, now


def test_one_that_stands_still_is_found() -> None:
    pulse, now = paced(10.0, 20)
    assert not pulse.hangs(19, True, now + 10 * (PATIENCE - 1.1))
    assert pulse.hangs(19, True, now + 10 * PATIENCE)


def test_the_first_compile_is_no_hang() -> None:
    pulse = Pulse()
    assert not pulse.hangs(0, True, 0.0)
    assert not pulse.hangs(0, True, 1e6)
    pulse, now = paced(0.01, SEEN)
    assert not pulse.hangs(SEEN - 1, True, now + 1e6)


def test_a_long_pause_seen_before_is_its_pace() -> None:
    pulse, now = paced(0.01, 20)
    assert not pulse.hangs(19, False, now + 60)  # it evaluates: nobody waits
    assert not pulse.hangs(20, True, now + 60)
    assert not pulse.hangs(20, True, now + 60 + 3 * 60)
    assert pulse.hangs(20, True, now + 60 + PATIENCE * 61)


def test_quick_steps_have_a_floor() -> None:
    pulse, now = paced(0.001, 50)
    assert not pulse.hangs(49, True, now + LEAST / 2)
    assert pulse.hangs(49, True, now + LEAST)
