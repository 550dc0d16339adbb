"""Rounds are values, and every record says in which epoch it was made."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from meshmend.job.protocol import (
    Begin,
    Collective,
    Divergence,
    Enlist,
    Failure,
    Gather,
    MemberState,
    Operation,
    Reduce,
    Revoke,
    Round,
    RoundKind,
    Shrink,
    Steps,
    Total,
    Verdict,
    Work,
    check,
    run_member,
)


def drive(steps: Steps, until: type[Operation], first: Any = None) -> Operation:
    """Answer a lone member's operations up to one of a kind."""
    operation = steps.send(first)
    while not isinstance(operation, until):
        result = [operation.record] if isinstance(operation, Gather) else 0
        operation = steps.send(result if isinstance(operation, (Gather, Begin, Shrink)) else None)
    return operation


def test_a_round_is_a_value_that_work_and_reduce_carry() -> None:
    steps = run_member(MemberState(0), lanes=3, wanted=1)
    work = drive(steps, Work)
    expected = Round(0, 3, Collective.ALL_REDUCE)
    assert work == Work(expected, (0, 1, 2)) and hash(expected) == hash(Round(0, 3))
    assert steps.send(None) == Reduce(expected)
    assert steps.send(Total([1, 1, 1], {0: 5}, 0)) == Work(Round(1, 3), (0, 1, 2))


@pytest.mark.parametrize(
    ("leaving", "noted", "kind", "verdict"),
    [
        (0, 0, RoundKind.SUM, Verdict.COMMIT),
        (0, 2, RoundKind.EXCHANGE, Verdict.COMMIT),
        (1, 1, RoundKind.EXCHANGE, Verdict.COMMIT),  # a newcomer's note, while the other one waits at the end
        (2, 0, RoundKind.END, Verdict.LEAVE),
        (1, 0, RoundKind.SUM, None),
    ],
)
def test_what_members_bring_tells_what_a_round_was_for(
    leaving: int, noted: int, kind: RoundKind, verdict: Verdict | None
) -> None:
    total = Total([0, 0] if leaving else [1, 1], {0: 5, 1: 5}, leaving, noted=noted)
    assert total.kind is kind
    with pytest.raises(Divergence, match="1 of 2 workers left") if verdict is None else nullcontext():
        assert check(total, 0) is verdict


@pytest.mark.parametrize("failures", [0, 1, 3])
def test_each_shrink_of_a_world_begins_an_epoch(failures: int) -> None:
    steps = run_member(MemberState(0), lanes=2, wanted=1, world=4)
    enlist = drive(steps, Enlist)
    for count in range(failures):
        assert isinstance(enlist, Enlist) and (enlist.world, enlist.shrink) == (4, count)
        assert isinstance(steps.send(None), Work)
        assert isinstance(steps.throw(Failure()), Revoke)
        gather = drive(steps, Gather)
        assert isinstance(gather, Gather) and (gather.record.world, gather.record.shrink) == (4, count + 1)
        enlist = drive(steps, Enlist, [gather.record])
    assert isinstance(enlist, Enlist) and (enlist.world, enlist.shrink) == (4, failures)


def test_a_repair_that_fails_counts_every_shrink_it_passed() -> None:
    steps = run_member(MemberState(0), lanes=2, wanted=1)
    drive(steps, Enlist)
    assert isinstance(steps.throw(Failure()), Revoke)
    assert isinstance(steps.send(None), Shrink)
    assert isinstance(steps.throw(Failure()), Revoke)  # no group came of it
    gather = drive(steps, Gather)
    assert isinstance(gather, Gather) and gather.record.shrink == 1
