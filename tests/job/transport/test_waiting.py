"""How a courier waits for the others: asleep while they compute, and without a nap once they have come."""

from __future__ import annotations

import pytest

from meshmend.base.clocks import PEER_POLL
from meshmend.job.transport import base
from meshmend.job.transport.base import patient


class Late:
    """An operation that completes at the given look."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def Test(self) -> bool:
        self.looks -= 1
        return self.looks <= 0


def test_who_waits_for_a_late_member_sleeps_and_then_spins() -> None:
    naps, come = list[float](), [False, False, False, True]
    patient(Late(50), lambda: come.pop(0), naps.append)
    assert naps == [PEER_POLL] * 3 and come == []


def test_who_is_not_told_looks_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = list[float]()
    monkeypatch.setattr(base.time, "sleep", slept.append)
    patient(Late(700))
    assert slept == sorted(slept) and slept[0] == 0 and slept[-1] == PEER_POLL and len(slept) == 699


def test_a_member_that_has_come_and_is_stopped_keeps_nobody_spinning(monkeypatch: pytest.MonkeyPatch) -> None:
    slept, spun = list[float](), list[float]()
    monkeypatch.setattr(base.time, "sleep", slept.append)
    monkeypatch.setattr(base, "spin", lambda _, seconds: spun.append(seconds))
    patient(Late(600), lambda: True, lambda _: pytest.fail("a nap after all have come"))
    assert len(spun) == 1 and len(slept) == 599
