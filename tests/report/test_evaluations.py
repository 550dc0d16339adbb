"""The audit of evaluations: each chunk once, and one result for all."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from meshmend.report import check, render
from meshmend.report.evaluations import Evaluations
from meshmend.telemetry import Committed, Epoch, Evaluated, Opened

EPOCH = Epoch(0, 1)


def line(rank: int, **values: Any) -> Evaluated:
    usual: dict[str, Any] = {
        "epoch": EPOCH, "step": 4, "round": 9, "size": 50, "chunk": 8, "by": [[0, 4], [1, 3]], "digest": "a" * 12,
    }  # fmt: skip
    return Evaluated(rank=rank, **{**usual, **values})


def folded(*events: Evaluated) -> Evaluations:
    found = Evaluations()
    for event in events:
        found.add(event)
    return found


def test_what_all_wrote_alike_is_one_evaluation() -> None:
    later = [line(rank, round=12, step=8) for rank in (0, 2)]
    resumed = line(0, epoch=Epoch(1, 4))
    found = folded(line(0), line(1), *later, resumed)
    assert found.count == 3 and not found.findings


@pytest.mark.parametrize(
    "other",
    [{"digest": "b" * 12}, {"by": [[0, 3], [1, 4]]}, {"size": 51}, {"step": 5}],
    ids=lambda other: next(iter(other)),
)
def test_workers_that_differ_are_found(other: dict[str, Any]) -> None:
    for events in permutations([line(0), line(1), line(2, **other)]):
        assert folded(*events).findings


@pytest.mark.parametrize("by", [[], [[0, 6]], [[0, 4], [1, 4]]])
def test_a_chunk_that_is_missing_or_counted_twice_is_found(by: list[list[int]]) -> None:
    [finding] = folded(line(0, by=by), line(1, by=by)).findings
    assert "has 7" in finding


def test_the_audit_counts_them_and_is_not_clean_with_findings() -> None:
    opened = Opened(epoch=EPOCH, rank=0, step=0, size=8, batch=2, lanes=2, seed=0, reduction="exact")
    steps = [Committed(epoch=EPOCH, rank=0, step=step, by=[[0, 2]], digest=f"{step:012x}") for step in range(4)]
    account = check([opened, *steps, line(0), line(1)])
    assert account.clean and account.evaluations == 1 and "1 evaluation, each chunk" in render(account, [])
    account = check([opened, *steps, line(0), line(1, digest="b" * 12)])
    assert not account.clean and "differ about the evaluation after 4 steps" in render(account, [])
