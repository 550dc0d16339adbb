"""How long workers waited for input, from their lines of the ledger, gathered or not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshmend.report import check, render, to_json
from meshmend.report.stalls import Stalls
from meshmend.telemetry import Committed, Epoch, Event, Opened, Steps

EPOCH = Epoch(0, 1)


def line(step: int, rank: int, time: float, stall: float, **values: Any) -> Committed:
    found: dict[str, Any] = {"epoch": EPOCH, "by": [[0, 1], [1, 1]], "digest": f"{step:012x}", **values}
    return Committed(time=time, rank=rank, step=step, stall=stall, **found)


def folded(events: list[Event]) -> Stalls:
    stalls = Stalls()
    for event in events:
        stalls.add(event)
    return stalls


def test_each_worker_has_its_share_of_its_own_time() -> None:
    quick = [line(step, 0, 10.0 + step, 0.01) for step in range(11)]
    slow = [line(step, 1, 10.0 + step, 0.25) for step in range(11)]
    found = folded([*quick, *slow])
    assert found.shares == {0: pytest.approx(0.01), 1: pytest.approx(0.25)}
    assert found.share == pytest.approx(0.13)
    gathered = folded([Steps.gather(quick[:4]), *quick[4:6], Steps.gather(quick[6:]), Steps.gather(slow)])
    assert gathered.shares == pytest.approx(found.shares, rel=0.05)


def test_time_between_attempts_and_before_the_first_step_does_not_count() -> None:
    before = [line(step, 0, 10.0 + step, 0.5) for step in range(3)]
    after = [line(step, 0, 1000.0 + step, 0.5, epoch=Epoch(1, 1)) for step in range(1, 4)]
    assert folded([*before, *after]).shares == {0: pytest.approx(0.5)}
    assert folded(before[:1]).shares == {}


def test_the_audit_tells_it() -> None:
    opened = [
        Opened(epoch=EPOCH, rank=rank, step=0, size=8, batch=2, lanes=2, seed=0, reduction="exact") for rank in (0, 1)
    ]
    lines = [line(step, rank, 10.0 + step, 0.25 * rank) for step in range(4) for rank in (0, 1)]
    account = check([*opened, *lines])
    assert account.clean and account.stalls == {0: 0.0, 1: pytest.approx(0.25)}
    assert "Input stall: 12.5 % of the time (worker 1: 25.0 %)." in render(account, [])
    assert json.loads(to_json(account, []))["stall"] == pytest.approx(0.125)
